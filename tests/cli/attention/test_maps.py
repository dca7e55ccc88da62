"""Words look where they may, and words of a translation at those that they translate."""

from __future__ import annotations

import json

import numpy as np

from tests.cli.toy_translation import SOURCE, pairs


def test_a_gpt_looks_at_itself_and_the_past(succeed, gpt):
    report = json.loads(succeed(gpt, "The owl saw 狐 and the fox", "--json"))
    weights = np.array(report["weights"])
    assert weights.shape == (3, 2, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(report["mean"], weights.mean((0, 1)), atol=2e-6)
    assert report["keys"]["labels"] == ["<s>", "The", "owl", "saw", "狐", "and", "the", "fox"]
    assert report["kind"] == "self"


def test_words_of_a_translation_look_at_what_they_translate(succeed, translation_run):
    right = total = 0
    for source, target in pairs(10, seed=12345):
        report = json.loads(succeed(translation_run, source, "--target", target, "--json"))
        found = {tuple(map(int, pair.split("-"))) for pair in report["alignments"].split()}
        last = len(source.split()) - 1
        right += len(found & {(last - place, place) for place in range(last + 1)})
        total += last + 1
        np.testing.assert_allclose(np.array(report["weights"]).sum(-1), 1, atol=1e-4)
    assert right / total > 0.9


def test_an_encoder_looks_at_its_source(succeed, translation_run):
    report = json.loads(succeed(translation_run, SOURCE, "--json"))
    assert report["kind"] == "self"
    assert report["keys"]["labels"] == [*SOURCE.split(), "</s>"]
    assert np.triu(np.array(report["weights"]), 1).any()
