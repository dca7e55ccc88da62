"""`lm translate`: each line of input has its lines of output, in order."""

import io
import json
import os
import pty
import signal
import sys
from subprocess import PIPE

import pytest

from cli.main import run
from lm.checkpoint import save_checkpoint
from lm.config.run_config import RunConfig
from lm.run_folder import TrainingState
from tests.forked import start
from tests.lm.decoding.copying import copier, lines

SOURCES = lines(12, seed=5)


@pytest.fixture(scope="module")
def copying(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("copying"), copier()
    save_checkpoint(
        folder, config=RunConfig(model=model.model.config), tokenizer=model.tokenizer,
        model=model.model.state_dict(), optimizer={}, state=TrainingState(), is_best=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def translate(monkeypatch, capfd, copying):
    """Run the command on some input; returns exit code, lines of stdout, and stderr."""

    def call(*arguments, text="", folder=copying):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = run(["translate", str(folder), *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out.split("\n")[:-1], err

    return call


def test_line_n_out_is_the_translation_of_line_n_in(translate, tmp_path):
    sources = [*SOURCES[:5], "", *SOURCES[5:], "  "]
    text = "\n".join(sources)
    for flags in ((), ("--batch-tokens", "1")):
        code, out, err = translate(*flags, text=text)
        assert (code, err) == (0, "")
        assert out == [source.strip() for source in sources]
    (tmp_path / "a").write_text("\n".join(sources[:4]) + "\n")
    (tmp_path / "b").write_text("\n".join(sources[4:]))
    assert translate(tmp_path / "a", tmp_path / "b")[1] == [source.strip() for source in sources]
    assert translate("-o", tmp_path / "out", text=text)[:2] == (0, [])
    assert (tmp_path / "out").read_text().split("\n") == [*(source.strip() for source in sources), ""]


def test_json_has_everything_a_line(translate):
    code, out, _ = translate("--json", "--n-best", "3", text="owl fox\n\nmill")
    results = [json.loads(line) for line in out]
    assert code == 0
    assert [(result["line"], result["source"]) for result in results] == [(1, "owl fox"), (2, ""), (3, "mill")]
    assert [len(result["translations"]) for result in results] == [3, 3, 3]
    best = results[0]["translations"][0]
    assert set(best) == {"text", "tokens", "logprobs", "score", "finish_reason"}
    assert (best["text"], best["finish_reason"]) == ("owl fox", "end_of_text")
    assert results[1]["translations"][0]["finish_reason"] == "blank"
    out = translate("--n-best", "2", text="owl fox\n\nmill")[1]
    assert (len(out), out[::2]) == (6, ["owl fox", "", "mill"])


def test_an_ensemble_of_equal_models_translates_as_one(translate, copying):
    assert translate(text="\n".join(SOURCES), folder=f"{copying},{copying}")[1] == SOURCES


def test_a_terminal_is_answered_line_by_line(copying):
    ours, theirs = pty.openpty()
    with start("translate", copying, stdin=theirs, stdout=PIPE, stderr=PIPE) as process:
        os.close(theirs)
        assert process.stderr.readline() == "type a line to have it translated; Ctrl-D ends\n"
        for line in ("owl fox", "mill"):
            os.write(ours, line.encode() + b"\n")
            assert process.stdout.readline() == line + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""
    os.close(ours)
