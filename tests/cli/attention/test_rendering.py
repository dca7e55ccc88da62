"""A map on a terminal has its texts, its numbers and its alignments."""

from __future__ import annotations

import json

import numpy as np

from tests.cli.toy_translation import SOURCE, TARGET


def test_layers_and_heads_can_be_chosen(succeed, gpt):
    report = json.loads(succeed("attention", gpt, "The owl", "--json", "--layer", 2, "--head", 1))
    np.testing.assert_allclose(report["mean"], report["weights"][1][0])
    assert "layer 2, head 1;" in succeed("attention", gpt, "The owl", "--layer", 2, "--head", 1)
    assert "layer 2, mean of 2 heads;" in succeed("attention", gpt, "The owl", "--layer", 2)


def test_the_terminal_shows_the_map_and_the_alignments(succeed, translation_run):
    lines = succeed("attention", translation_run, SOURCE, "--target", TARGET).splitlines()
    assert lines[:2] == [f"source  {SOURCE}", f"target  {TARGET}"]
    assert lines[-1].endswith(": 0-3 1-2 2-1 3-0")
    assert [line.split()[0] for line in lines[-7:-2]] == ["Fuchs", "drei", "여우", "eins", "</s>"]
