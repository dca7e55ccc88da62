"""Positions by distance from the command line: trained, resumed, decoded, looked at and measured, in both models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from corpora import parallel
from tests.system.conftest import SMALL

FIXED = ["--threads", "1", "--device", "cpu", "--dtype", "float32", "--seed", "3", "--dropout", "0.1"]
SCHEMES = ["relative", "t5", "alibi"]


def weights(folder: Path) -> list[bytes]:
    """All that resuming must not change."""
    saved = folder / "checkpoints" / "step-6"
    names = ("model.safetensors", "optimizer.safetensors")
    return [(folder / "metrics.jsonl").read_bytes(), *((saved / name).read_bytes() for name in names)]


def succeed(capsys, *arguments: object) -> str:
    capsys.readouterr()
    code = run([*map(str, arguments)])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


@pytest.fixture
def pairs(tmp_path) -> list[str]:
    """Flags that name thirty sentences and their translations."""
    found = []
    for side, suffix in (("source", "en"), ("target", "de")):
        lines = (Path(parallel.__file__).parent / f"heldout.{suffix}").read_text().splitlines()[:30]
        (tmp_path / suffix).write_text("\n".join(lines) + "\n")
        found += [f"--{side}", str(tmp_path / suffix)]
    return found


@pytest.mark.parametrize("positions", SCHEMES)
def test_a_language_model_of_distances(positions, place, tmp_path, capsys):
    flags = [*SMALL, *FIXED, "--positions", positions, "--optimizer", "muon", "--checkpoint-every", "3"]
    for name, steps in (("whole", 6), ("resumed", 3)):
        succeed(capsys, "train", place / "text.txt", "-o", tmp_path / name, "--steps", steps, *flags,
                "--schedule", "constant", "--evaluate-every", 3)  # fmt: skip
    succeed(capsys, "train", "--resume", tmp_path / "resumed", "--steps", 6)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    for decoder in (["--greedy"], ["--beam", 3]):  # past the context too
        text = json.loads(
            succeed(capsys, "generate", tmp_path / "whole", "one", *decoder, "--max-tokens", 20, "--json")
        )
        assert 0 < len(text["tokens"]) <= 20
    shown = json.loads(succeed(capsys, "attention", tmp_path / "whole", "one two", "--json"))
    assert shown["kind"] == "self"
    described = json.loads(succeed(capsys, "info", tmp_path / "whole", "--json"))
    assert described["parameters"].get("positions", 0) == {"relative": 2 * 32 * 17, "t5": 32 * 2, "alibi": 0}[positions]


@pytest.mark.parametrize("positions", SCHEMES)
def test_a_translation_model_of_distances(positions, pairs, tmp_path, capsys):
    flags = [*pairs, *FIXED, "--preset", "translation-tiny", "--d-model", 32, "--n-layers", 1, "--n-encoder-layers", 1,
             "--n-heads", 2, "--vocab-size", 300, "--positions", positions, "--checkpoint-every", 3,
             "--schedule", "constant", "--evaluate-every", 3, "--bleu-sentences", 2]  # fmt: skip
    for name, steps in (("whole", 6), ("resumed", 3)):
        succeed(capsys, "train", "-o", tmp_path / name, "--steps", steps, *flags)
    succeed(capsys, "train", "--resume", tmp_path / "resumed", "--steps", 6)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    shown = json.loads(succeed(capsys, "attention", tmp_path / "whole", "A dog runs.", "--json"))
    assert shown["kind"] == "self"
    crossed = succeed(capsys, "attention", tmp_path / "whole", "A dog runs.", "--target", "Ein Hund.", "--json")
    assert json.loads(crossed)["kind"] == "cross"
    translated = succeed(capsys, "translate", tmp_path / "whole", tmp_path / "en", "--beam", 4)
    assert len(translated.splitlines()) == 30


def test_a_distance_without_a_scheme_that_has_one_is_refused_in_a_line(place, tmp_path, capsys):
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *SMALL, "--max-distance", "8"]) == 2
    assert "rotary positions have no max_distance (--set model.max_distance, --positions)" in capsys.readouterr().err
