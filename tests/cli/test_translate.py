"""`lm translate`: each line of input has its lines of output, in order."""

import io
import itertools
import json
import os
import pty
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from cli.main import run
from cli.translation.line_io import (
    read_lines_with_heads,
    read_prefixes,
    warn_of_tabs,
    with_progress,
    write_translations,
)
from lm.checkpoint import save_checkpoint
from lm.config.run_config import RunConfig
from lm.decoding.translation import TranslatedLine, Translation
from lm.errors import InputError, UsageError
from lm.run_folder import TrainingState
from tests.cli.small_runs import make_run
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
    for flags in ((), ("--greedy",), ("--beam", "2"), ("--batch-tokens", "1"), ("--read-ahead", "3")):
        code, out, err = translate(*flags, text=text)
        assert (code, err) == (0, "")
        assert out == [source.strip() for source in sources]
    (tmp_path / "a").write_text("\n".join(sources[:4]) + "\n")
    (tmp_path / "b").write_text("\n".join(sources[4:]))
    assert translate(tmp_path / "a", tmp_path / "b")[1] == [source.strip() for source in sources]
    assert translate("-", tmp_path / "b", text="\n".join(sources[:4]))[1] == [source.strip() for source in sources]
    code, out, _ = translate("-o", tmp_path / "out", text=text)
    assert (code, out) == (0, [])
    assert (tmp_path / "out").read_text().split("\n") == [*(source.strip() for source in sources), ""]
    assert translate(text="") == (0, [], "")


def test_json_has_everything_a_line(translate):
    code, out, _ = translate("--json", "--n-best", "3", text="owl fox\n\nmill")
    results = [json.loads(line) for line in out]
    assert code == 0
    assert [result["line"] for result in results] == [1, 2, 3]
    assert [result["source"] for result in results] == ["owl fox", "", "mill"]
    assert [len(result["translations"]) for result in results] == [3, 3, 3]
    best = results[0]["translations"][0]
    assert set(best) == {"text", "tokens", "logprobs", "score", "finish_reason"}
    assert (best["text"], best["finish_reason"]) == ("owl fox", "end_of_text")
    assert best["score"] == pytest.approx(sum(best["logprobs"]) / len(best["tokens"]))
    assert results[1]["translations"][0] == {
        "text": "", "tokens": [], "logprobs": [], "score": 0.0, "finish_reason": "blank",
    }  # fmt: skip


def test_n_best_has_n_lines_for_each(translate):
    _, out, _ = translate("--n-best", "2", text="owl fox\n\nmill")
    assert len(out) == 6
    assert out[::2] == ["owl fox", "", "mill"]


def test_prefixes_ensembles_and_samples(translate, copying, tmp_path):
    assert translate("--prefix", "mill", text="owl\nfox")[1][0].startswith("mill")
    (tmp_path / "prefixes").write_text("\nmill\n")
    out = translate("--prefix-file", tmp_path / "prefixes", text="owl\nfox\nsaw")[1]
    assert out[0] == "owl"
    assert out[1].startswith("mill")
    assert out[2] == "saw"
    assert translate("--ensemble", copying, text="\n".join(SOURCES))[1] == SOURCES
    drawn = [translate("--sample", "--temperature", "5", "--seed", "3", text="owl\nfox")[1] for _ in range(2)]
    assert drawn[0] == drawn[1] != ["owl", "fox"]
    assert translate("--coverage-penalty", "0.2", text="\n".join(SOURCES))[1] == SOURCES


def test_wrong_input_is_one_line(translate):
    assert translate(text=b"owl\nfo\xff\n")[::2] == (1, "lm: stdin: line 2 is not valid UTF-8 (at its byte 2)\n")


def test_sources_beyond_learned_positions_are_reported(translate, tmp_path):
    folder = make_run(tmp_path / "run", n_encoder_layers=1, positions="learned")
    code, out, err = translate("--greedy", text="owl\n" + "owl " * 1000 + "\nfox", folder=folder)
    assert (code, len(out)) == (0, 3)
    assert err.startswith("line 2: its last ")


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


def translated(source: str, *texts: str, left_out: int = 0) -> TranslatedLine:
    made = tuple(Translation(text, tokens=(1,), logprobs=(-0.5,), score=-0.5, finish_reason="end") for text in texts)
    return TranslatedLine(source, made, left_out)


def test_each_file_has_its_file_of_heads(tmp_path, monkeypatch):
    for name, text in {"a": "one two\nsix", "heads": "2 0\n0\n", "more": "0 1\n\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("狐 two\n\n".encode())))
    lines, heads = read_lines_with_heads([tmp_path / "a", Path("-")], [tmp_path / "heads", tmp_path / "more"])
    assert list(zip(lines, heads, strict=True)) == [("one two", (2, 0)), ("six", (0,)), ("狐 two", (0, 1)), ("", ())]
    with pytest.raises(UsageError, match="1 files to translate and 2 files of heads"):
        read_lines_with_heads([tmp_path / "a"], [tmp_path / "heads", tmp_path / "more"])
    with pytest.raises(InputError, match="more: line 2 has 0 heads, and its sentence 1 word$"):
        list(read_lines_with_heads([tmp_path / "a"], [tmp_path / "more"])[0])


def test_tabs_are_warned_of_once(capsys):
    lines = ["a", "b\tc", "d\te"]
    assert list(warn_of_tabs(lines)) == lines
    assert capsys.readouterr().err.count("line 2 has a tab: whole lines are translated") == 1


def test_a_prefix_is_for_all_lines_or_for_its_own(tmp_path):
    assert read_prefixes(None, None) is None
    prefixes = iter(read_prefixes("Der", None))
    assert [next(prefixes) for _ in range(3)] == ["Der"] * 3
    (tmp_path / "prefixes").write_text("Der\n\nDie\n")
    assert list(read_prefixes(None, tmp_path / "prefixes")) == ["Der", "", "Die"]


def test_every_line_has_as_many_lines_of_output(capsys):
    stream = io.StringIO()
    write_translations(stream, 1, translated("owl", "Eule", "Uhu"), n_best=3, as_json=False)
    write_translations(stream, 2, translated("fox", "Fuchs", left_out=4), n_best=3, as_json=False)
    assert stream.getvalue() == "Eule\nUhu\n\nFuchs\n\n\n"
    assert capsys.readouterr().err == "line 2: its last 4 tokens were not read: the line is too long for the model\n"


def test_json_is_one_line_for_each(capsys):
    stream = io.StringIO()
    write_translations(stream, 7, translated("owl", "Eule"), n_best=3, as_json=True)
    (line,) = stream.getvalue().splitlines()
    report = json.loads(line)
    assert (report["line"], report["source"]) == (7, "owl")
    assert report["translations"][0]["text"] == "Eule"


@pytest.mark.parametrize("shown", [True, False])
def test_watching_changes_nothing(capsys, shown):
    results = [translated(str(number), "x") for number in range(5)]
    assert list(with_progress(iter(results), shown=shown)) == results
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "notes"),
    [
        (6, ["2 lines, 0.2 lines/s", "4 lines, 0.2 lines/s", "4 lines in 30.0 s, 0.2 lines/s"]),
        (10, ["2 lines, 0.1 lines/s", "4 lines, 0.1 lines/s", "4 lines in 50.0 s, 0.1 lines/s"]),
        (11, [f"{n} line{'s' * (n > 1)}, 0.1 lines/s" for n in (1, 2, 3, 4)] + ["4 lines in 55.0 s, 0.1 lines/s"]),
        (2, []),
    ],
)
def test_a_pipe_sees_a_line_when_ten_seconds_have_passed(capsys, monkeypatch, seconds, notes):
    """By a clock that a line of input advances."""
    results = [translated("owl", "Eule")] * 4
    monkeypatch.setattr("time.perf_counter", itertools.count(0, seconds).__next__)
    assert list(with_progress(iter(results), shown=True)) == results
    assert capsys.readouterr().err.splitlines() == notes
    assert list(with_progress(iter(results), shown=False)) == results
    assert capsys.readouterr().err == ""
