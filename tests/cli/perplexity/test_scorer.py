"""What the settings of scoring change, and what they do not."""

from __future__ import annotations

from tests.cli.small_runs import TEXT
from tests.tolerances import approx


def test_context_and_stride_change_the_figures_but_the_batch_does_not(report, runs, texts):
    half = report(runs["bpe"], texts)
    disjoint = report(runs["bpe"], texts, "--stride", 32)
    short = report(runs["bpe"], texts, "--context", 8)
    assert (disjoint["stride"], short["context"], short["stride"]) == (32, 8, 4)
    figures = {run["total"]["nats"] for run in (half, disjoint, short)}
    assert len(figures) == 3
    assert len({run["total"]["tokens"] for run in (half, disjoint, short)}) == 1
    for size in (1, 5, 32):
        again = report(runs["bpe"], texts, "--batch-size", size)
        assert again["total"]["nats"] == approx(half["total"]["nats"], terms=64, depth=20)


def test_the_first_characters_of_documents_are_unscored_without_a_start_token(report, runs, texts):
    total = report(runs["char"], texts)["total"]
    assert total["unscored"] == total["documents"] == 3
    assert total["tokens"] == len(TEXT) + len("The fox.\nThe owl.\n") - 3


def test_a_longer_context_than_the_models_is_allowed_with_rotary_positions(report, runs, texts):
    assert report(runs["bpe"], texts, "--context", 60)["context"] == 60


def test_documents_are_split_as_asked(report, runs, texts):
    (texts / "c.txt").write_text("The fox.\n---\nThe owl.\n")
    assert report(runs["bpe"], texts / "c.txt")["total"]["documents"] == 1
    assert report(runs["bpe"], texts / "c.txt", "--separator", "---")["total"]["documents"] == 2
