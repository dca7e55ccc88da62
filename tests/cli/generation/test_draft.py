"""`lm generate --draft`: what another run guesses, the model reads at once."""

from __future__ import annotations

import pytest

from cli.main import run
from tests.cli.small_runs import make_run

GREEDY = ["--greedy", "--max-tokens", "20", "--stats"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    make_run(folder / "small", d_model=16)
    make_run(folder / "other", kind="char")
    return make_run(folder / "run").parent


def told(capsys, runs, *arguments: str) -> tuple[str, str]:
    assert run(["generate", str(runs / "run"), *arguments]) == 0
    return tuple(capsys.readouterr())


@pytest.mark.parametrize("draft", ["prompt", "small", "run"])
def test_greedy_texts_are_the_same(runs, capsys, draft):
    name = draft if draft == "prompt" else str(runs / draft)
    text, stats = told(capsys, runs, "The owl saw the owl saw", "--draft", name, *GREEDY)
    assert text == told(capsys, runs, "The owl saw the owl saw", *GREEDY)[0]
    assert "draft tokens" in stats


def test_several_samples_come_with_a_seed(runs, capsys):
    drawn = [told(capsys, runs, "The owl", "-n", "3", "--seed", "1", "--draft", str(runs / "small"))[0] for _ in "12"]
    assert drawn[0] == drawn[1]
    assert drawn[0].count("<|endoftext|>") == 2
