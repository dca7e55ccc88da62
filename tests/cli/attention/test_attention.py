"""Words look where they may, the text may come from a pipe, and what cannot be shown is refused in one line."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from tests.cli.toy_translation import SOURCE, pairs

LAST_PLACE = 1e-6
"""Weights have six decimals."""


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_text_can_come_from_a_pipe(succeed, gpt, monkeypatch, arguments):
    expected = succeed("attention", gpt, "The owl 狐", "--json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("The owl 狐\n".encode())))
    assert succeed("attention", gpt, *arguments, "--json") == expected


def test_a_gpt_attends_to_itself_and_the_past(succeed, gpt):
    report = json.loads(succeed("attention", gpt, "The owl saw 狐 and the fox", "--json"))
    weights = np.array(report["weights"])
    assert weights.shape == (3, 2, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=weights.shape[-1] * LAST_PLACE)
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(report["mean"], weights.mean((0, 1)), atol=LAST_PLACE)
    assert report["keys"]["labels"] == ["<s>", "The", "owl", "saw", "狐", "and", "the", "fox"]
    assert report["kind"] == "self"


def test_words_of_a_translation_attend_to_their_source(succeed, translation_run):
    right = total = 0
    for source, target in pairs(10, seed=12345):
        report = json.loads(succeed("attention", translation_run, source, "--target", target, "--json"))
        found = {tuple(map(int, pair.split("-"))) for pair in report["alignments"].split()}
        last = len(source.split()) - 1
        right += len(found & {(last - place, place) for place in range(last + 1)})
        total += last + 1
        weights = np.array(report["weights"])
        np.testing.assert_allclose(weights.sum(-1), 1, atol=weights.shape[-1] * LAST_PLACE)
    assert right / total > 0.9


def test_an_encoder_attends_to_its_source(succeed, translation_run):
    report = json.loads(succeed("attention", translation_run, SOURCE, "--json"))
    assert report["kind"] == "self"
    assert report["keys"]["labels"] == [*SOURCE.split(), "</s>"]
    assert np.triu(np.array(report["weights"]), 1).any()
