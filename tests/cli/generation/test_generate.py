"""`lm generate`: one prompt or a file of them, samples or beams, to people, pipes and programs."""

import io
import json
import os
import pty
import signal
import sys
from subprocess import PIPE

import pytest

from cli.main import run
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import TEXT, make_run
from tests.forked import start
from tests.system.conftest import SMALL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of three kinds of model, by the kind of their tokenizer or shape."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "bpe": make_run(folder / "bpe"),
        "char": make_run(folder / "char", kind="char"),
        "small": make_run(folder / "small", d_model=16),
        "encoder": make_run(folder / "encoder", n_encoder_layers=1, positions="sinusoidal"),
    }


class Stdin(io.TextIOWrapper):
    """Standard input that holds these bytes, as a pipe or a terminal does."""

    def __init__(self, data: bytes = b"", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(autouse=True)
def stdin(monkeypatch):
    """Replaces standard input; empty unless a test says otherwise."""

    def replace(data: bytes = b"", **options) -> None:
        monkeypatch.setattr(sys, "stdin", Stdin(data, **options))

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


def failure(capsys, *arguments) -> tuple[int, str]:
    code = run([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return code, output.err


def records(generate, *arguments) -> list[dict]:
    return [json.loads(line) for line in generate(*arguments, "--json").splitlines()]


def test_json_describes_each_sample(generate, runs):
    (sample,) = records(generate, runs["bpe"], "The owl", "--max-tokens", 12, "--seed", 5)
    assert list(sample) == ["prompt", "text", "tokens", "logprobs", "finish_reason", "seed"]
    assert sample["prompt"] == "The owl"
    assert sample["seed"] == 5
    assert sample["finish_reason"] in ("length", "end_of_text")
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    assert sample["text"] == tokenizer.decode(sample["tokens"])
    assert len(sample["tokens"]) == len(sample["logprobs"]) == 12


def test_text_is_the_prompt_and_its_continuation(generate, runs):
    flags = ("--greedy", "--max-tokens", 10)
    (sample,) = records(generate, runs["bpe"], "The owl", *flags)
    assert generate(runs["bpe"], "The owl", *flags) == "The owl" + sample["text"].removesuffix("\n") + "\n"
    assert generate(runs["bpe"], "The owl", *flags, "--no-echo") == sample["text"].removesuffix("\n") + "\n"


def test_samples_are_parted_by_separator_lines_as_documents_of_a_corpus(generate, runs):
    flags = (runs["bpe"], "The", "-n", 4, "--seed", 1, "--max-tokens", 8)
    samples = records(generate, *flags)
    texts = ["The" + sample["text"].removesuffix("\n") + "\n" for sample in samples]
    assert generate(*flags) == "<|endoftext|>\n".join(texts)
    assert len(set(texts)) == 4


def test_a_fresh_seed_is_reported_and_repeats_the_sample(generate, runs):
    flags = (runs["bpe"], "The owl", "--max-tokens", 20)
    (sample,), (other,) = records(generate, *flags), records(generate, *flags)
    assert sample["seed"] != other["seed"]
    (again,) = records(generate, *flags, "--seed", sample["seed"])
    assert again["tokens"] == sample["tokens"]


def test_a_sample_is_one_line_whatever_is_in_it(generate, runs):
    prompt = "One\u2028two\u2029three\x85four\nfive"
    (sample,) = records(generate, runs["bpe"], prompt, "--max-tokens", 1)
    assert sample["prompt"] == prompt


def test_the_prompt_can_come_from_a_pipe_less_one_line_end(generate, runs, stdin):
    for data, argument, prompt in (
        (b"The fox\n", [], "The fox"),
        (b"The fox\r\n", ["-"], "The fox"),
        ("Über\n\n".encode(), [], "Über\n"),
        (b"ignored", ["The owl"], "The owl"),
    ):
        stdin(data)
        (sample,) = records(generate, runs["bpe"], *argument, "--max-tokens", 1)
        assert sample["prompt"] == prompt


def test_without_a_prompt_a_new_document_starts(generate, runs, stdin):
    for terminal in (True, False):
        stdin(b"", terminal=terminal)
        (sample,) = records(generate, runs["bpe"], "--max-tokens", 3)
        assert sample["prompt"] == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_prompt_or_a_start_token_a_prompt_is_asked_for(capsys, runs, stdin, terminal):
    stdin(b"", terminal=terminal)
    code, message = failure(capsys, "generate", runs["char"])
    assert code == 2
    assert "give a prompt" in message


def test_the_prompt_can_come_from_a_file_exactly(generate, runs, tmp_path):
    file = tmp_path / "prompt.txt"
    for text in ("The fox\n", "Über\r\n\n", ""):
        file.write_bytes(text.encode())
        (sample,) = records(generate, runs["bpe"], "--prompt-file", file, "--max-tokens", 1)
        assert sample["prompt"] == text.replace("\r\n", "\n")


def test_text_output_ends_before_a_stop_string_too(generate, runs):
    flags = (runs["bpe"], "The", "--greedy", "--max-tokens", 30, "--no-echo")
    whole = generate(*flags)
    assert generate(*flags, "--stop", whole[5:8]) == whole[: whole.find(whole[5:8])].removesuffix("\n") + "\n"


def test_each_filter_has_an_effect(generate, runs):
    flags = (runs["bpe"], "The owl", "--seed", 2, "--max-tokens", 40, "-n", 3, "--temperature", 1.5)
    tokens = [sample["tokens"] for sample in records(generate, *flags)]
    for name, value in (
        ("--min-p", 0.3), ("--typical", 0.3), ("--repetition-penalty", 2), ("--presence-penalty", 3),
        ("--frequency-penalty", 3), ("--no-repeat-ngram", 1), ("--logit-bias", " =5"),
    ):  # fmt: skip
        filtered = [sample["tokens"] for sample in records(generate, *flags, name, value)]
        assert filtered != tokens, name


def test_a_beam_gives_the_best_texts_with_their_scores(generate, runs):
    flags = (runs["bpe"], "The owl", "--max-tokens", 12)
    best = records(generate, *flags, "--beam", 4, "-n", 3)
    assert len(best) == 3
    for sample in best:
        assert list(sample) == ["prompt", "text", "tokens", "logprobs", "score", "finish_reason"]
        assert sample["score"] == pytest.approx(sum(sample["logprobs"]) / len(sample["tokens"]))
    assert [sample["score"] for sample in best] == sorted((sample["score"] for sample in best), reverse=True)
    (summed,) = records(generate, *flags, "--beam", 4, "--length-penalty", 0)
    assert summed["score"] == pytest.approx(sum(summed["logprobs"]))
    texts = ["The owl" + sample["text"].removesuffix("\n") + "\n" for sample in best]
    assert generate(*flags, "--beam", 4, "-n", 3) == "<|endoftext|>\n".join(texts)
    greedy, one = records(generate, *flags, "--greedy"), records(generate, *flags, "--beam", 1)
    assert greedy[0]["tokens"] == one[0]["tokens"]


def test_stats_go_to_stderr_when_asked_for(capsys, runs):
    assert run(["generate", str(runs["bpe"]), "The", "--stats", "--seed", "9", "--max-tokens", "3"]) == 0
    error = capsys.readouterr().err
    assert "3 tokens" in error
    assert "seed 9" in error


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


def test_on_a_terminal_nothing_waits_for_a_key(runs):
    ours, theirs = pty.openpty()
    with start("generate", runs["bpe"], "--max-tokens", 5, stdin=theirs, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait() == 0
    os.close(ours)
    os.close(theirs)


def test_the_prompt_is_bold_on_a_terminal(runs, tmp_path):
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with start("generate", runs["bpe"], "The owl", "--max-tokens", 2, stdin=theirs, stdout=theirs,
               env=environment) as process:  # fmt: skip
        assert process.wait() == 0
    written = os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)
    assert written.startswith(b"\x1b[1mThe owl\x1b[0m")


def test_a_prompt_may_end_anywhere(runs, generate):
    for prompt in ("The owl ", "The owl saw the fo"):
        given = (runs["bpe"], prompt, "--greedy", "--max-tokens", 8)
        healed, plain = (json.loads(generate(*given, "--json", *flag)) for flag in ((), ("--no-token-healing",)))
        assert healed["prompt"] == plain["prompt"] == prompt
        assert healed["text"] != plain["text"]
        assert generate(*given).removesuffix("\n") == (prompt + healed["text"]).removesuffix("\n")
    prompt = (runs["char"], "The owl ", "--greedy", "--max-tokens", 8)
    assert generate(*prompt) == generate(*prompt, "--no-token-healing")


GREEDY = ["--greedy", "--max-tokens", "20", "--stats"]


def told(capsys, runs, *arguments: str) -> tuple[str, str]:
    assert run(["generate", str(runs["bpe"]), *arguments]) == 0
    return tuple(capsys.readouterr())


@pytest.mark.parametrize("draft", ["prompt", "small", "bpe"])
def test_greedy_texts_are_the_same(runs, capsys, draft):
    name = draft if draft == "prompt" else str(runs[draft])
    text, stats = told(capsys, runs, "The owl saw the owl saw", "--draft", name, *GREEDY)
    assert text == told(capsys, runs, "The owl saw the owl saw", *GREEDY)[0]
    assert "draft tokens" in stats


def test_several_samples_come_with_a_seed(runs, capsys):
    flags = ("-n", "3", "--seed", "1", "--max-tokens", "12", "--draft", str(runs["small"]))
    drawn = [told(capsys, runs, "The owl", *flags)[0] for _ in "12"]
    assert drawn[0] == drawn[1]
    assert drawn[0].count("<|endoftext|>") == 2


LINES = [
    "The owl",
    "",
    "The owl saw the fox by the mill. The owl saw the fox by the mill.",
    "The fox",
    "Über den Bäumen",
]


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


@pytest.mark.parametrize(("n", "processes"), [(1, 1), (2, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_samples_depend_neither_on_how_many_there_are_nor_on_the_order_of_the_lines(
    runs, generate, tmp_path, n, processes
):
    flags = ("--max-tokens", 5, "--seed", 4, "--threads", 1)
    alone = {line: records(generate, runs["bpe"], line, *flags, "-n", 4) for line in LINES}
    path = tmp_path / "reversed.txt"
    path.write_text("".join(f"{line}\n" for line in [*reversed(LINES), LINES[0]]), encoding="utf-8")
    command = ("--prompts", path, "-n", n, "--batch-size", 4, "--processes", processes)
    found = [sample["tokens"] for sample in records(generate, runs["bpe"], *flags, *command)]
    assert found[:-n] == [sample["tokens"] for line in reversed(LINES) for sample in alone[line][:n]]
    assert found[-n:] != found[-2 * n : -n], "a prompt that comes again has other samples"


def test_texts_are_separated_as_documents_and_may_go_to_a_file(runs, prompts, generate, tmp_path):
    flags = ("--prompts", prompts, "--max-tokens", 5, "--greedy")
    written = generate(runs["bpe"], *flags)
    assert written.count("<|endoftext|>\n") == len(LINES) - 1
    assert written.startswith("The owl")
    assert generate(runs["bpe"], *flags, "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == written
    bare = generate(runs["bpe"], *flags, "--no-echo")
    assert len(bare) < len(written)
    assert "The fox" not in bare


def test_several_samples_of_each_and_their_alternatives(runs, prompts, generate):
    flags = ("--max-tokens", 4, "--seed", 1, "-n", 2, "--top-alternatives", 3)
    found = records(generate, runs["bpe"], "--prompts", prompts, *flags)
    assert [one["prompt"] for one in found] == [line for line in LINES for _ in range(2)]
    assert all(len(one["alternatives"]) == len(one["tokens"]) for one in found)
    assert found[0]["tokens"] != found[1]["tokens"]


def test_objects_with_settings_of_their_own(runs, generate, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "The owl", "seed": 8, "max_tokens": 3}\n{"text": "The owl"}\n')
    first, second = records(generate, runs["bpe"], "--prompts", path, "--max-tokens", 6, "--seed", 1)
    (alone,) = records(generate, runs["bpe"], "The owl", "--max-tokens", 3, "--seed", 8)
    assert (first["tokens"], first["seed"]) == (alone["tokens"], 8)
    assert (len(second["tokens"]), second["seed"]) == (6, 1)


def test_beam_search_returns_the_best_texts_of_each_prompt(runs, prompts, generate):
    flags = ("--max-tokens", 5, "--beam", 3, "-n", 2)
    found = records(generate, runs["bpe"], "--prompts", prompts, *flags)
    assert len(found) == 2 * len(LINES)
    assert found[0]["score"] >= found[1]["score"]
    assert found[:2] == records(generate, runs["bpe"], LINES[0], *flags)


def test_an_empty_file_has_no_results_and_that_is_said(runs, capsys, tmp_path):
    empty, out = tmp_path / "none.txt", tmp_path / "out.txt"
    empty.write_text("")
    assert run(["generate", str(runs["bpe"]), "--prompts", str(empty), "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", f"{empty}: no prompts, so nothing to do\n")
    assert out.read_text() == ""


@pytest.mark.parametrize(("dtype", "told"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_speed_dtype_and_seed_are_printed(runs, prompts, capsys, dtype, told):
    flags = ["--max-tokens", "3", "--seed", "5", "--stats", "--dtype", dtype]
    assert run(["generate", str(runs["bpe"]), "--prompts", str(prompts), *flags]) == 0
    assert "5 prompts, 15 tokens in " in (error := capsys.readouterr().err)
    assert error.endswith(f" tokens/s, {told}, seed 5\n")


def test_a_prompt_without_a_run_names_the_only_run_there_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for names, named in (([], "RUN"), (["a"], "runs/a"), (["a", "b"], "RUN")):
        for name in names:
            (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True, exist_ok=True)
        assert run(["generate", "A man is"]) == 2
        assert capsys.readouterr().err.endswith(f"a run comes before the text: lm generate {named} 'A man is'\n")
    assert run(["generate", "long " * 1000]) == 2
    assert "lm generate RUN ...\n" in capsys.readouterr().err


@pytest.mark.parametrize(("documents", "prompt", "is_advised"), [(1, [], True), (1, ["The"], False), (9, [], False)])
def test_a_model_of_one_document_needs_a_prompt(tmp_path, capsys, documents, prompt, is_advised):
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join([TEXT * 9] * documents))
    assert run(["train", str(tmp_path / "a.txt"), *SMALL, "--steps", "1", "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert run(["generate", str(tmp_path / "run"), *prompt, "--max-tokens", "3"]) == 0
    assert ("give a prompt" in capsys.readouterr().err) is is_advised
