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
from tests.cli.toy_translation import pairs
from tests.forked import start

SOURCES, TARGETS = zip(*pairs(12, seed=5), strict=True)


@pytest.fixture
def translate(monkeypatch, capfd, translation_run):
    """Run the command on some input; returns exit code, lines of stdout, and stderr."""

    def call(*arguments, text="", folder=translation_run):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = run(["translate", str(folder), *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out.split("\n")[:-1], err

    return call


def test_line_n_out_is_the_translation_of_line_n_in(translate, tmp_path):
    sources, targets = [*SOURCES[:5], "", *SOURCES[5:], "  "], [*TARGETS[:5], "", *TARGETS[5:], ""]
    text = "\n".join(sources)
    for flags in ((), ("--batch-tokens", "1")):
        code, out, err = translate(*flags, text=text)
        assert (code, err) == (0, "")
        assert out == targets
    (tmp_path / "a").write_text("\n".join(sources[:4]) + "\n")
    (tmp_path / "b").write_text("\n".join(sources[4:]))
    assert translate(tmp_path / "a", tmp_path / "b")[1] == targets
    assert translate("-o", tmp_path / "out", text=text)[:2] == (0, [])
    assert (tmp_path / "out").read_text().split("\n") == [*targets, ""]


def test_json_has_everything_a_line(translate):
    code, out, _ = translate("--json", "--n-best", "3", text="one fox\n\nsun 狐")
    results = [json.loads(line) for line in out]
    assert code == 0
    assert [(result["line"], result["source"]) for result in results] == [(1, "one fox"), (2, ""), (3, "sun 狐")]
    assert [len(result["translations"]) for result in results] == [3, 3, 3]
    best = results[0]["translations"][0]
    assert set(best) == {"text", "tokens", "logprobs", "score", "finish_reason"}
    assert (best["text"], best["finish_reason"]) == ("Fuchs eins", "end_of_text")
    assert results[1]["translations"][0]["finish_reason"] == "blank"
    out = translate("--n-best", "2", text="one fox\n\nsun 狐")[1]
    assert (len(out), out[::2]) == (6, ["Fuchs eins", "", "여우 Sonne"])


def test_an_ensemble_of_equal_models_translates_as_one(translate, translation_run):
    assert translate(text="\n".join(SOURCES), folder=f"{translation_run},{translation_run}")[1] == [*TARGETS]


def test_a_terminal_is_answered_line_by_line(translation_run):
    ours, theirs = pty.openpty()
    with start("translate", translation_run, stdin=theirs, stdout=PIPE, stderr=PIPE) as process:
        os.close(theirs)
        assert process.stderr.readline() == "type a line to have it translated; Ctrl-D ends\n"
        for source, target in zip(SOURCES[:2], TARGETS, strict=False):
            os.write(ours, source.encode() + b"\n")
            assert process.stdout.readline() == target + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""
    os.close(ours)
