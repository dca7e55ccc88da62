"""What a run that starts from another one's weights, or is extended, says on stderr, and in its summary."""

import contextlib
import io
import itertools
import json
import re
import shutil

import pytest

from cli.main import run
from lm.run_folder import load_config

SMALL = [
    "--kind", "byte", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "16", "--batch-size", "4",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with two texts and a run on the first."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "one.txt").write_text("the fox and the owl sing to the moon. " * 200)
    (folder / "two.txt").write_text("a sailor sells shells by the shore; " * 60)
    flags = ["-o", str(folder / "base"), "--steps", "40", "--evaluate-every", "20", *SMALL]
    with contextlib.redirect_stderr(io.StringIO()) as said, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        assert run(["train", str(folder / "one.txt"), *flags]) == 0
    assert "no improvement" not in said.getvalue()
    return folder


@pytest.fixture
def base(trained, tmp_path, monkeypatch):
    """A copy of it, where commands run."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def train(capsys, *arguments: str) -> tuple[dict[str, object], str]:
    assert run(["train", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_what_was_chosen_is_reported_with_the_losses_that_it_was_chosen_by(base, capsys):
    summary, err = train(capsys, "two.txt", "--from", "base", "-o", "tuned")
    (line,) = [line for line in err.splitlines() if line.startswith("from ")]
    assert "on this text" in line
    assert "of a new model's), " in line
    assert f"{load_config(base / 'tuned').plan.steps} steps (" in line
    assert "step      0  validation loss" in err
    assert summary["improved"] is True
    assert "no improvement" not in err


def test_a_tokenizer_that_fits_the_new_text_badly_is_warned_about(base, capsys):
    (base / "near.txt").write_text("the owl and the moon sing to the fox. " * 60)
    (base / "far.txt").write_text("лиса и сова поют под луной. " * 60)
    flags = [*SMALL[2:], "--steps", "2", "--evaluate-every", "0"]
    train(capsys, "one.txt", "-o", "words", "--vocab-size", "300", *flags)

    def warning(text: str, parent: str) -> str:
        _, err = train(capsys, text, "--from", parent, "-o", f"{text}-{parent}-{next(numbers)}", "--steps", "1")
        return "".join(line for line in err.splitlines() if "the tokenizer takes" in line)

    numbers = itertools.count()
    assert re.fullmatch(
        r"warning the tokenizer takes 1\.0\d bytes/token on this text, and \d\.\d\d on the text of words",
        warning("far.txt", "words"),
    )
    assert warning("near.txt", "words") == warning("far.txt", "base") == ""  # base has bytes, one a token in any text
    shutil.rmtree(load_config(base / "words").plan.data)
    assert warning("far.txt", "words").startswith("warning the tokenizer takes 1.0")
    assert warning("near.txt", "words") == ""


def test_a_run_that_does_not_improve_says_so(base, capsys):
    summary, err = train(capsys, "two.txt", "--from", "base", "-o", "still", "--learning-rate", "0", "--steps", "3")
    assert (summary["best_step"], summary["improved"]) == (0, False)
    assert "of a new model's" not in err  # the rate was given
    assert "no improvement: no later step was better than what training began with" in err


def test_an_extended_run_tells_which_rate_and_weights_it_takes(base, capsys):
    summary, err = train(capsys, "--resume", "base", "--steps", "50")
    assert "resume  base at step 40 of 50" in err
    assert "10% of its peak, falling to the end" in err
    assert "it has overfit" not in err
    assert summary["steps"] == 50


@pytest.mark.medium
def test_an_extended_run_that_has_overfit_tells_so(base, capsys):
    """A single line, over and over, which is memorised, and a validation split of other letters."""
    (base / "learned.txt").write_text("aaaabbbbccccdddd\n" * 60)
    (base / "held-out.txt").write_text("zyxw vuts rqpo nmlk " * 20)
    settings = ["--validation", "held-out.txt", "--steps", "100", "--evaluate-every", "5", "--keep", "0", *SMALL]
    first, _ = train(capsys, "learned.txt", "-o", "overfit", "--preset", "tiny", *settings)
    assert first["best_step"] < 100
    summary, err = train(capsys, "--resume", "overfit", "--steps", "110")
    assert f"from the weights of step-{first['best_step']}, the best" in err
    assert "it has overfit (validation loss " in err
    assert summary["best_loss"] <= first["best_loss"]
    (base / "overfit" / "checkpoints" / "step-100").stat()
