"""`lm generate`: one prompt, a file of them or a session, samples or beams, to people, pipes and programs."""

import contextlib
import io
import json
import re
import signal
import sys
from subprocess import PIPE

import pytest

from cli.generating import INTRODUCTION, SampleWriter
from cli.main import run
from lm.decoding.batching import Continuation
from lm.tokenizer import Tokenizer
from tests.cli.pseudo_terminal import Terminal
from tests.cli.small_runs import make_run
from tests.forked import start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of three kinds of model, by the kind of their tokenizer or shape."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "bpe": make_run(folder / "bpe"),
        "char": make_run(folder / "char", kind="char"),
        "small": make_run(folder / "small", d_model=16),
    }


@pytest.fixture(autouse=True)
def stdin(monkeypatch):
    """Replaces standard input; empty unless a test says otherwise."""

    def replace(data: bytes = b"") -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    replace()
    return replace


@pytest.fixture
def generate(capsys):
    """Runs a command line that must succeed; returns its standard output."""

    def succeed(*arguments) -> str:
        code = run(["generate", *map(str, arguments)])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        return output.out

    return succeed


def records(generate, *arguments) -> list[dict]:
    return [json.loads(line) for line in generate(*arguments, "--json").splitlines()]


def test_json_describes_each_sample(generate, runs):
    (sample,) = records(generate, runs["bpe"], "The owl", "--max-tokens", 12, "--seed", 5)
    assert list(sample) == ["prompt", "text", "tokens", "logprobs", "finish_reason", "dtype", "seed"]
    assert sample["prompt"] == "The owl"
    assert sample["seed"] == 5
    assert sample["finish_reason"] in ("length", "end_of_text")
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    assert sample["text"] == tokenizer.decode(sample["tokens"])
    assert len(sample["tokens"]) == len(sample["logprobs"]) == 12


def test_samples_are_parted_by_separator_lines_as_documents_of_a_corpus(generate, runs):
    flags = (runs["bpe"], "The", "-n", 4, "--seed", 1, "--max-tokens", 8)
    samples = records(generate, *flags)
    texts = ["The" + sample["text"].removesuffix("\n") + "\n" for sample in samples]
    assert generate(*flags) == "<|endoftext|>\n".join(texts)
    assert len(set(texts)) == 4


def test_a_beam_gives_the_best_texts_with_their_scores(generate, runs):
    flags = (runs["bpe"], "The owl", "--max-tokens", 12)
    best = records(generate, *flags, "--beam", 4, "-n", 3)
    assert len(best) == 3
    for sample in best:
        assert list(sample) == ["prompt", "text", "tokens", "logprobs", "finish_reason", "dtype", "score"]
        assert sample["score"] == pytest.approx(sum(sample["logprobs"]) / len(sample["tokens"]))
    assert [sample["score"] for sample in best] == sorted((sample["score"] for sample in best), reverse=True)
    (summed,) = records(generate, *flags, "--beam", 4, "--length-penalty", 0)
    assert summed["score"] == pytest.approx(sum(summed["logprobs"]))
    greedy, one = records(generate, *flags, "--temperature", "0"), records(generate, *flags, "--beam", 1)
    assert greedy[0]["tokens"] == one[0]["tokens"]


def test_ctrl_c_ends_with_what_there_is(runs):
    endless = "generate", runs["bpe"], "The", "--max-tokens", 10**9, "--logit-bias", "0=-inf"
    with start(*endless, stdout=PIPE, stderr=PIPE) as process:
        begun = process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
        assert process.wait() == 130
        assert process.stderr.read() == ""
    assert begun.startswith("The")
    assert output.endswith("\n")


@pytest.mark.parametrize("draft", [("--prompt-lookup",), ("--draft-model", "small")])
def test_a_draft_changes_no_greedy_text(runs, generate, draft):
    command = (runs["bpe"], "The owl saw the owl saw", "--temperature", "0", "--max-tokens", 20)
    assert generate(*command, *(runs.get(word, word) for word in draft)) == generate(*command)


LINES = ["The owl", "", "The owl saw the fox by the mill.", "The fox", "Über den Bäumen"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def test_results_come_in_the_order_of_the_lines(runs, prompts, generate):
    flags = ("--max-tokens", 9, "--seed", 4)
    found = records(generate, runs["bpe"], "--prompts", prompts, *flags, "--batch-size", 2)
    assert [one["prompt"] for one in found] == LINES
    assert all(len(one["tokens"]) <= 9 and one["seed"] == 4 for one in found)
    (alone,) = records(generate, runs["bpe"], LINES[0], *flags)
    assert found[0]["text"] == alone["text"]
    assert set(found[0]) == set(alone)


def test_samples_depend_neither_on_how_many_there_are_nor_on_the_order_of_the_lines(runs, generate, tmp_path):
    n = 2
    flags = ("--max-tokens", 5, "--seed", 4, "--threads", 1)
    alone = {line: records(generate, runs["bpe"], line, *flags, "-n", 4) for line in LINES}
    path = tmp_path / "reversed.txt"
    path.write_text("".join(f"{line}\n" for line in [*reversed(LINES), LINES[0]]), encoding="utf-8")
    command = ("--prompts", path, "-n", n, "--batch-size", 4)
    found = [sample["tokens"] for sample in records(generate, runs["bpe"], *flags, *command)]
    assert found[:-n] == [sample["tokens"] for line in reversed(LINES) for sample in alone[line][:n]]
    assert found[-n:] != found[-2 * n : -n], "a prompt that comes again has other samples"


def test_texts_are_separated_as_documents_and_may_go_to_a_file(runs, prompts, generate, tmp_path):
    flags = ("--prompts", prompts, "--max-tokens", 5, "--temperature", "0")
    written = generate(runs["bpe"], *flags)
    assert written.count("<|endoftext|>\n") == len(LINES) - 1
    assert written.startswith("The owl")
    assert generate(runs["bpe"], *flags, "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == written


def test_objects_with_settings_of_their_own(runs, generate, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "The owl", "seed": 8, "max_tokens": 3}\n{"text": "The owl"}\n')
    first, second = records(generate, runs["bpe"], "--prompts", path, "--max-tokens", 6, "--seed", 1)
    (alone,) = records(generate, runs["bpe"], "The owl", "--max-tokens", 3, "--seed", 8)
    assert (first["tokens"], first["seed"]) == (alone["tokens"], 8)
    assert (len(second["tokens"]), second["seed"]) == (6, 1)
    path.write_text('{"prompt": "The owl", "max_tokens": 0}\n')
    assert run(["generate", str(runs["bpe"]), "--prompts", str(path)]) == 1


def test_on_a_terminal_the_prompt_is_bold_and_what_controls_it_is_a_symbol(terminal):
    screen = terminal(80)
    SampleWriter([Continuation("b\x1b", [1], [-1.0], [], "length")], "a\x07").write_new()
    assert screen.getvalue() == "\x1b[1ma␇\x1b[0mb␛\n"


@pytest.fixture
def talk(capsys, monkeypatch):
    """Runs a session on lines of input, without a terminal; returns its output and notes."""

    def talk(folder, *lines, flags=()) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert run(["generate", str(folder), "--interactive", *map(str, flags)]) == 0
        output = capsys.readouterr()
        return output.out, output.err

    return talk


@pytest.fixture
def plain(generate):
    """The continuation of a prompt that the command gives without a session."""
    return lambda folder, prompt, *flags: generate(folder, prompt, "--no-echo", *flags)


GREEDY = ("--temperature", "0", "--max-tokens", 8)


def test_each_line_is_continued_from_the_whole_text(talk, plain, runs):
    output, notes = talk(runs["char"], "The owl", "the fox", flags=GREEDY)
    first = plain(runs["char"], "The owl", *GREEDY)
    text = "The owl" + first  # its line end is the one between the turns
    assert output == first + plain(runs["char"], text + "the fox", *GREEDY)
    assert notes == ""


def test_undo_removes_a_line_and_retry_samples_it_again(talk, plain, runs, tmp_path):
    lines = ("The owl", "the fox", "/undo", "by", "/undo", "/undo", "The", f"/save {tmp_path / 'saved'}")
    output, notes = talk(runs["char"], *lines, flags=GREEDY)
    first, last = (plain(runs["char"], line, *GREEDY) for line in ("The owl", "The"))
    fox, mill = (plain(runs["char"], f"The owl{first}{line}", *GREEDY) for line in ("the fox", "by"))
    assert output == first + fox + mill + last
    assert notes.count("undone") == 3
    assert (tmp_path / "saved").read_text() == "The" + last
    flags = ("--seed", 5, "--max-tokens", 8)
    output, _ = talk(runs["char"], "/rest", "The owl", "/retry", flags=flags)
    assert output.startswith(plain(runs["char"], "The owl", *flags))
    assert output != 2 * plain(runs["char"], "The owl", *flags)


def test_on_a_terminal_ctrl_c_stops_the_text_and_ctrl_d_the_session(runs):
    with contextlib.closing(
        Terminal("generate", runs["bpe"], "--interactive", "--max-tokens", 10**9, "--logit-bias", "0=-inf")
    ) as terminal:
        terminal.wait_for(re.escape(INTRODUCTION))
        terminal.wait_for("> ")
        terminal.type("The owl\n")
        terminal.wait_for("The owl\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.interrupt_waiting()
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=900) == 0
