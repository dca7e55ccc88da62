"""Translation without an encoder from the command line: trained, resumed, decoded and scored like other models."""

import json
from pathlib import Path

import pytest

from cli.main import run
from lm.run_folder import load_config
from tests.cli.toy_translation import pairs

SHAPE = ["--d-model", "32", "--vocab-size", "300", "--threads", "1", "--device", "cpu", "--dtype", "float32"]
LENGTH = ["--evaluate-every", "2", "--dropout", "0.2", "--set", "training.bleu_sentences=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models of one stack, of one direction and of two, four steps old, and what they learned from."""
    folder = tmp_path_factory.mktemp("decoder-only")
    for side, path in enumerate(("text.en", "text.de")):
        lines = [pair[side] + "\n" for pair in pairs(120, seed=0)]
        (folder / path).write_text("".join(lines))
        (folder / f"few-{path}").write_text("".join(lines[:5]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        command = ["train", *files(folder), "--preset", "translation-tiny", *SHAPE, *LENGTH, "--n-layers", "2"]
        one = "model.decoder_only=true", "training.ema=0.9", "parallel.bpe_dropout=0.2", "training.r_drop=0.5"
        two = "model.decoder_only=true", "parallel.bidirectional=true", "training.best_by=bleu"
        for name, settings in (("one", one), ("two", two)):
            given = [word for setting in settings for word in ("--set", setting)]
            assert run([*command, *given, "--steps", "4", "--sample", "one two", "-o", str(folder / name)]) == 0
        text = ["train", str(folder / "text.en"), "-o", str(folder / "lm"), *SHAPE, "--n-layers", "2"]
        assert run([*text, "--context", "16", "--steps", "2"]) == 0
    return folder


def files(folder: Path, which: str = "") -> list[str]:
    return ["--source", str(folder / f"{which}text.en"), "--target", str(folder / f"{which}text.de")]


def test_translate_in_every_way(folder, capsys):
    one, text = str(folder / "one"), str(folder / "few-text.en")
    for arguments in (
        [one, text, "--beam", "1"], [one, text, "--n-best", "2", "--json"], [f"{one},{one}/checkpoints/step-2", text],
    ):  # fmt: skip
        assert run(["translate", *arguments]) == 0
        *lines, last = capsys.readouterr().out.split("\n")
        assert (len(lines), last) == (5, "")
    for language in ("de", "en"):
        assert run(["translate", str(folder / "two"), str(folder / "few-text.en"), "--to", language]) == 0


def test_evaluate_perplexity_average_and_info(folder, tmp_path, capsys):
    assert run(["average", str(folder / "one"), "--last", "2", "-o", str(tmp_path / "mean")]) == 0
    for name in (folder / "one", tmp_path / "mean"):
        capsys.readouterr()
        assert run(["evaluate", str(name), *files(folder, "few-"), "--json"]) == 0
        assert "bleu" in capsys.readouterr().out.lower()
    assert run(["perplexity", str(folder / "one"), *files(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["documents"] == 120
    assert run(["info", str(folder / "one")]) == 0
    out = capsys.readouterr().out
    assert "n_layers 2" in out
    assert "decoder_only True" in out


def test_a_run_starts_from_another_and_from_a_model_of_texts(folder, tmp_path):
    for number, (start, options) in enumerate((("one", []), ("lm", ["--set", "model.decoder_only=true"]))):
        made = tmp_path / str(number)
        command = ["train", *files(folder), "--from", str(folder / start), *options, "-o", str(made), "--steps", "1"]
        assert run([*command, "--threads", "1", "--dtype", "float32"]) == 0
        assert load_config(made).model.decoder_only
