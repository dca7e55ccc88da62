"""Translation without an encoder from the command line: trained, in one direction and in two, and started from."""

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
        (folder / path).write_text("".join(pair[side] + "\n" for pair in pairs(120, seed=0)))
    (folder / "few.en").write_text("one two\nthree\n")
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


def files(folder: Path) -> list[str]:
    return ["--source", str(folder / "text.en"), "--target", str(folder / "text.de")]


def test_a_model_of_two_directions_translates_into_either_language(folder):
    for language in ("de", "en"):
        assert run(["translate", str(folder / "two"), str(folder / "few.en"), "--to", language]) == 0


def test_a_run_starts_from_another_and_from_a_model_of_texts(folder, tmp_path):
    for number, (start, options) in enumerate((("one", []), ("lm", ["--set", "model.decoder_only=true"]))):
        made = tmp_path / str(number)
        command = ["train", *files(folder), "--from", str(folder / start), *options, "-o", str(made), "--steps", "1"]
        assert run([*command, "--threads", "1", "--dtype", "float32"]) == 0
        assert load_config(made).model.decoder_only
