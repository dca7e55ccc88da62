"""`lm attention`: words look where they may, and maps come as text, JSON, pages and pictures."""

import json
import re

import numpy as np
import pytest

from tests.cli.small_runs import make_run
from tests.cli.toy_translation import SOURCE, TARGET, pairs


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gpt", n_layers=3, context_length=64)


LAST_PLACE = 1e-6

"""Weights have six decimals."""


def test_a_gpt_attends_to_itself_and_the_past(succeed, gpt):
    report = json.loads(succeed("attention", gpt, "The owl saw 狐 and the fox", "--json"))
    weights = np.array(report["weights"])
    assert weights.shape == (3, 2, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=weights.shape[-1] * LAST_PLACE)
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(report["mean"], weights.mean((0, 1)), atol=LAST_PLACE)
    assert report["keys"]["labels"] == ["<s>", "The", "owl", "saw", "狐", "and", "the", "fox"]


def test_words_of_a_translation_attend_to_their_source(succeed, translation_run):
    right = total = 0
    for source, target in pairs(10, seed=12345):
        report = json.loads(succeed("attention", translation_run, source, "--target", target, "--json"))
        found = {tuple(map(int, pair.split("-"))) for pair in report["alignments"].split()}
        last = len(source.split()) - 1
        right += len(found & {(last - place, place) for place in range(last + 1)})
        total += last + 1
    assert right / total > 0.9


def test_the_terminal_shows_the_map_and_the_alignments(succeed, translation_run):
    lines = succeed("attention", translation_run, SOURCE, "--target", TARGET).splitlines()
    assert lines[:3] == [SOURCE, TARGET, "0-3 1-2 2-1 3-0"]
    assert [line.split()[0] for line in lines[-5:]] == ["Fuchs", "drei", "여우", "eins", "</s>"]


def test_translate_writes_a_map_a_line(succeed, translation_run, tmp_path):
    known = pairs(5, seed=99)
    sources = [source for source, _ in known]
    (tmp_path / "test.en").write_text("\n".join([*sources[:2], "", *sources[2:]]) + "\n")
    command = "translate", translation_run, tmp_path / "test.en"
    plain = succeed(*command)
    assert succeed(*command, "--attention", tmp_path / "a.jsonl") == plain
    maps = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert ["\t".join(one["texts"]) for one in maps] == [
        "\t".join(pair) for pair in zip([*sources[:2], "", *sources[2:]], plain.splitlines(), strict=True)
    ]
    assert maps[2]["alignments"] == ""
    succeed(*command, "--attention", tmp_path / "a.pharaoh")
    assert (tmp_path / "a.pharaoh").read_text().split("\n")[:-1] == [one["alignments"] for one in maps]


def test_a_page_needs_nothing_else_and_has_all_heads(succeed, gpt, tmp_path):
    succeed("attention", gpt, "The <b>owl</b> & 狐", "-o", tmp_path / "a.html")
    source = (tmp_path / "a.html").read_text()
    assert not re.search(r"https?:|<script|<link|<b>", source)
    assert source.count("<td style") == 5 * 5 * (1 + 3 * 2)


@pytest.mark.medium
def test_pictures_are_drawn(succeed, gpt, tmp_path):
    pytest.importorskip("matplotlib")
    succeed("attention", gpt, "The owl costs $5 and $6 狐", "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
