"""Attention patterns from the command line: trained, resumed, decoded, looked at and measured, in both models."""

from __future__ import annotations

import json

import pytest

from cli.main import run
from tests.system.conftest import SMALL
from tests.system.test_positions import FIXED, pairs, succeed, weights  # noqa: F401 (a fixture)

KINDS = {
    "window": ["--attention-window", 4],
    "bigbird": ["--attention-block", 2, "--global-blocks", 1, "--random-blocks", 1],
    "compressed": ["--attention-block", 4, "--attention-stride", 2],
    "linformer": ["--attention-rank", 6],
}


def slow(kind: str):
    """A pattern that is tested with -m slow; its layers have tests of their own."""
    return pytest.param(kind, marks=pytest.mark.slow)


COMPRESSED_AND_OTHERS = ["compressed", *map(slow, ("window", "bigbird", "linformer"))]
LINFORMER_AND_OTHERS = ["linformer", *map(slow, ("window", "bigbird", "compressed"))]


@pytest.mark.parametrize("kind", ["bigbird", *map(slow, ("window", "compressed"))])
def test_a_language_model_with_a_pattern(kind, place, tmp_path, capsys):
    flags = [*SMALL, *FIXED, "--attention", kind, *KINDS[kind], "--n-layers", 2, "--optimizer", "muon",
             "--checkpoint-every", 3, "--schedule", "constant", "--evaluate-every", 3]  # fmt: skip
    for name, steps in (("whole", 6), ("resumed", 3)):
        succeed(capsys, "train", place / "text.txt", "-o", tmp_path / name, "--steps", steps, *flags)
    succeed(capsys, "train", "--resume", tmp_path / "resumed", "--steps", 6)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    for decoder in (["--greedy"], ["--beam", 3]):  # past the context too
        found = [
            json.loads(succeed(capsys, "generate", tmp_path / "whole", "one", *decoder, "--max-tokens", 20, "--json",
                               *cached))["tokens"]
            for cached in ([], ["--no-cache"])
        ]  # fmt: skip
        assert 0 < len(found[0]) <= 20
        assert found[0] == found[1]
    shown = json.loads(succeed(capsys, "attention", tmp_path / "whole", "one two", "--json"))
    assert shown["kind"] == "self"
    assert "perplexity" in succeed(capsys, "perplexity", tmp_path / "whole", place / "text.txt")
    described = succeed(capsys, "info", tmp_path / "whole")
    assert f"attention   {kind}, attention " in described


@pytest.mark.parametrize("kind", ["window", *map(slow, ("bigbird", "compressed"))])
def test_a_translation_model_of_one_stack_with_a_pattern(kind, pairs, tmp_path, capsys):  # noqa: F811
    flags = [*pairs, *FIXED, "--preset", "translation-tiny", "--d-model", 32, "--n-layers", 2, "--n-heads", 2,
             "--vocab-size", 300, "--attention", kind, *KINDS[kind], "--bleu-sentences", 2, "--steps", 3]  # fmt: skip
    succeed(capsys, "train", "-o", tmp_path / "whole", "--decoder-only", *flags)
    for options in (["--beam", 4], ["--sample", "--seed", 1]):
        translated = succeed(capsys, "translate", tmp_path / "whole", tmp_path / "en", *options)
        assert translated.count("\n") == 30


@pytest.mark.parametrize("kind", COMPRESSED_AND_OTHERS)
def test_a_translation_model_with_a_pattern(kind, pairs, tmp_path, capsys):  # noqa: F811
    flags = [*pairs, *FIXED, "--preset", "translation-tiny", "--d-model", 32, "--n-layers", 2, "--n-encoder-layers", 2,
             "--n-heads", 2, "--vocab-size", 300, "--attention", kind, *KINDS[kind], "--checkpoint-every", 3,
             "--schedule", "constant", "--evaluate-every", 3, "--bleu-sentences", 2]  # fmt: skip
    for name, steps in (("whole", 6), ("resumed", 3)):
        succeed(capsys, "train", "-o", tmp_path / name, "--steps", steps, *flags)
    succeed(capsys, "train", "--resume", tmp_path / "resumed", "--steps", 6)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    crossed = succeed(capsys, "attention", tmp_path / "whole", "A dog runs.", "--target", "Ein Hund.", "--json")
    assert json.loads(crossed)["kind"] == "cross"
    translated = succeed(capsys, "translate", tmp_path / "whole", tmp_path / "en", "--beam", 4)
    assert translated.count("\n") == 30
    looked = run(["attention", str(tmp_path / "whole"), "A dog runs.", "--json"])
    assert looked == (2 if kind == "linformer" else 0)
    if kind == "linformer":
        assert (
            "linformer attends to combinations of all positions: there is no attention map" in capsys.readouterr().err
        )


@pytest.mark.parametrize("kind", LINFORMER_AND_OTHERS)
def test_a_masked_model_with_a_pattern(kind, place, tmp_path, capsys):
    flags = [*SMALL, *FIXED, "--objective", "masked", "--attention", kind, *KINDS[kind], "--n-layers", 2,
             "--checkpoint-every", 3, "--schedule", "constant", "--evaluate-every", 3]  # fmt: skip
    for name, steps in (("whole", 6), ("resumed", 3)):
        succeed(capsys, "train", place / "text.txt", "-o", tmp_path / name, "--steps", steps, *flags)
    succeed(capsys, "train", "--resume", tmp_path / "resumed", "--steps", 6)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    assert succeed(capsys, "fill", tmp_path / "whole", "one [MASK] three")
    assert "perplexity" in succeed(capsys, "perplexity", tmp_path / "whole", place / "text.txt")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--attention-window", "8"],
            "full attention has no attention_window (--set model.attention_window, --set model.attention)",
        ),
        (["--attention", "linformer"], "linformer attention is for encoders"),
        (["--attention", "bigbird", "--attention-rank", "4"], "bigbird attention has no attention_rank"),
        (["--attention", "sparse"], "(--set model.attention)"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_in_a_line(flags, message, place, tmp_path, capsys):
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *SMALL, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
