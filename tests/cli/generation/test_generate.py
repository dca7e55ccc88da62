import io
import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from cli.main import run
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_run
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import approx


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of three kinds of model, by the kind of their tokenizer or shape."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "bpe": make_run(folder / "bpe"),
        "char": make_run(folder / "char", kind="char"),
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
def lm(capsys):
    """Runs a command line that must succeed; returns its standard output."""

    def succeed(*arguments) -> str:
        code = run([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert code == 0, output.err
        assert output.err == ""
        return output.out

    return succeed


def failure(capsys, *arguments) -> tuple[int, str]:
    code = run([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return code, output.err


def records(lm, *arguments) -> list[dict]:
    return [json.loads(line) for line in lm("generate", *arguments, "--json").splitlines()]


def test_json_describes_each_sample(lm, runs):
    (sample,) = records(lm, runs["bpe"], "The owl", "--max-tokens", 12, "--seed", 5)
    assert list(sample) == ["prompt", "text", "tokens", "logprobs", "finish_reason", "seed"]
    assert sample["prompt"] == "The owl"
    assert sample["seed"] == 5
    assert sample["finish_reason"] in ("length", "end_of_text")
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    assert sample["text"] == tokenizer.decode(sample["tokens"])
    assert len(sample["tokens"]) == len(sample["logprobs"]) == 12


def test_log_probabilities_are_the_models(lm, runs):
    from lm.checkpoint import load_model
    from lm.config.hardware import HardwareConfig
    from lm.hardware import select_inference_hardware

    (sample,) = records(lm, runs["bpe"], "The owl", "--max-tokens", 9, "--temperature", 0.5, "--top-k", 3)
    loaded = load_model(runs["bpe"], select_inference_hardware(HardwareConfig(device="cpu")))
    prompt = [loaded.tokenizer.start_of_text, *loaded.tokenizer.encode("The owl")]
    logits = SessionDriver(loaded.model, cached=False).feed(torch.tensor([prompt + sample["tokens"]]))[0]
    expected = logits[len(prompt) - 1 : -1].log_softmax(-1)[torch.arange(9), sample["tokens"]]
    assert sample["logprobs"] == approx(expected.tolist(), model=loaded.model)


def test_text_is_the_prompt_and_its_continuation(lm, runs):
    flags = ("--greedy", "--max-tokens", 10)
    (sample,) = records(lm, runs["bpe"], "The owl", *flags)
    assert lm("generate", runs["bpe"], "The owl", *flags) == "The owl" + sample["text"].removesuffix("\n") + "\n"
    assert lm("generate", runs["bpe"], "The owl", *flags, "--no-echo") == sample["text"].removesuffix("\n") + "\n"


def test_samples_are_parted_by_separator_lines_as_documents_of_a_corpus(lm, runs):
    flags = (runs["bpe"], "The", "-n", 4, "--seed", 1, "--max-tokens", 8)
    samples = records(lm, *flags)
    texts = ["The" + sample["text"].removesuffix("\n") + "\n" for sample in samples]
    assert lm("generate", *flags) == "<|endoftext|>\n".join(texts)
    assert len(set(texts)) == 4


def test_samples_do_not_depend_on_count_batch_and_cache(lm, runs):
    flags = ("The owl", "--seed", 11, "--max-tokens", 50)
    reference = records(lm, runs["bpe"], *flags, "-n", 5)
    for others in (["-n", 2], ["-n", 5, "--batch-size", 2], ["-n", 5, "--no-cache"], ["-n", 3, "--batch-size", 1]):
        assert_same_draws(records(lm, runs["bpe"], *flags, *others), reference)
    assert_same_draws(records(lm, runs["bpe"], *flags), reference)


def assert_same_draws(again: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
    """Assert that samples are equal, but for at most one in which a draw fell on a boundary between two tokens.

    Tokens are drawn from the distribution summed in the order of their IDs, so that rounding can only exchange
    neighbours; what follows such a draw differs. Without a batch sums are rounded otherwise.
    """
    pairs = [(one["tokens"], other["tokens"]) for one, other in zip(again, reference, strict=False)]
    different = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(different) <= 1
    for one, other in different:
        mine, theirs = next((a, b) for a, b in zip(one, other, strict=True) if a != b)
        assert abs(mine - theirs) == 1


def test_a_fresh_seed_is_reported_and_repeats_the_sample(lm, runs):
    (sample,) = records(lm, runs["bpe"], "The owl")
    (other,) = records(lm, runs["bpe"], "The owl")
    assert sample["seed"] != other["seed"]
    (again,) = records(lm, runs["bpe"], "The owl", "--seed", sample["seed"])
    assert again["tokens"] == sample["tokens"]


def test_a_sample_is_one_line_whatever_is_in_it(lm, runs):
    prompt = "One\u2028two\u2029three\x85four\nfive"
    (sample,) = records(lm, runs["bpe"], prompt, "--max-tokens", 1)
    assert sample["prompt"] == prompt


def test_the_prompt_can_come_from_a_pipe_less_one_line_end(lm, runs, stdin):
    for data, argument, prompt in (
        (b"The fox\n", [], "The fox"),
        (b"The fox\r\n", ["-"], "The fox"),
        ("Über\n\n".encode(), [], "Über\n"),
        (b"ignored", ["The owl"], "The owl"),
    ):
        stdin(data)
        (sample,) = records(lm, runs["bpe"], *argument, "--max-tokens", 1)
        assert sample["prompt"] == prompt


def test_without_a_prompt_a_new_document_starts(lm, runs, stdin):
    for terminal in (True, False):
        stdin(b"", terminal=terminal)
        (sample,) = records(lm, runs["bpe"], "--max-tokens", 3)
        assert sample["prompt"] == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_prompt_or_a_start_token_a_prompt_is_asked_for(capsys, runs, stdin, terminal):
    stdin(b"", terminal=terminal)
    code, message = failure(capsys, "generate", runs["char"])
    assert code == 2
    assert "give a prompt" in message


def test_a_text_ends_at_its_end_token(lm, runs):
    samples = records(lm, runs["bpe"], "The owl", "-n", 40, "--temperature", 3, "--max-tokens", 60, "--seed", 2)
    end = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json").end_of_text
    reasons = [sample["finish_reason"] for sample in samples]
    assert set(reasons) == {"length", "end_of_text"}
    for sample in samples:
        assert (sample["tokens"][-1] == end) == (sample["finish_reason"] == "end_of_text")
        assert end not in sample["tokens"][:-1]
        assert "<|endoftext|>" not in sample["text"]


def test_the_end_of_text_can_be_banned_at_first_or_ignored(lm, runs):
    flags = (runs["bpe"], "The owl", "-n", 20, "--temperature", 3, "--max-tokens", 60, "--seed", 2)
    for sample in records(lm, *flags, "--min-tokens", 50):
        assert len(sample["tokens"]) >= 50
    ignored = records(lm, *flags, "--ignore-eos")
    assert {(len(sample["tokens"]), sample["finish_reason"]) for sample in ignored} == {(60, "length")}
    assert all("<|endoftext|>" not in sample["text"] for sample in ignored)


def test_the_prompt_can_come_from_a_file_exactly(capsys, lm, runs, tmp_path):
    file = tmp_path / "prompt.txt"
    for text in ("The fox\n", "Über\r\n\n", ""):
        file.write_bytes(text.encode())
        (sample,) = records(lm, runs["bpe"], "--prompt-file", file, "--max-tokens", 1)
        assert sample["prompt"] == text.replace("\r\n", "\n")
    file.write_bytes(b"The \xff")
    code, message = failure(capsys, "generate", runs["bpe"], "--prompt-file", file)
    assert (code, str(file) in message, "byte offset 4" in message) == (1, True, True)
    code, message = failure(capsys, "generate", runs["bpe"], "--prompt-file", tmp_path / "none.txt")
    assert (code, "none.txt" in message) == (1, True)


def test_a_text_ends_before_a_stop_string_whatever_the_batch(lm, runs):
    flags = (runs["bpe"], "The", "--seed", 3, "--max-tokens", 40, "-n", 6, "--temperature", 1.5)
    free = records(lm, *flags)
    stops = [text["text"][9:12] for text in free[:2]]  # of several tokens, most likely
    given = [flag for stop in stops for flag in ("--stop", stop)]
    stopped = records(lm, *flags, *given)
    assert {sample["finish_reason"] for sample in stopped[:2]} == {"stop"}
    for sample, whole in zip(stopped, free, strict=True):
        ends = [whole["text"].find(stop) for stop in stops if stop in whole["text"]]
        assert sample["text"] == (whole["text"][: min(ends)] if ends else whole["text"])
        assert sample["tokens"] == whole["tokens"][: len(sample["tokens"])]
    others = records(lm, *flags, *given, "--batch-size", 2)
    assert [sample["tokens"] for sample in others] == [sample["tokens"] for sample in stopped]
    assert [sample["text"] for sample in others] == [sample["text"] for sample in stopped]


def test_text_output_ends_before_a_stop_string_too(lm, runs):
    flags = ("generate", runs["bpe"], "The", "--greedy", "--max-tokens", 30, "--no-echo")
    whole = lm(*flags)
    assert lm(*flags, "--stop", whole[5:8]) == whole[: whole.find(whole[5:8])].removesuffix("\n") + "\n"


def test_a_banned_token_never_comes_and_a_favoured_one_always(lm, runs):
    flags = (runs["bpe"], "The", "--max-tokens", 30, "--seed", 1)
    (free,) = records(lm, *flags)
    (banned,) = records(
        lm, *flags, *(flag for token in set(free["tokens"]) for flag in ("--logit-bias", f"{token}=-inf"))
    )
    assert not set(free["tokens"]) & set(banned["tokens"])
    (favoured,) = records(lm, *flags, "--logit-bias", "e=100")
    assert favoured["text"] == "e" * 30


def test_no_n_tokens_in_a_row_are_repeated(lm, runs):
    (sample,) = records(lm, runs["bpe"], "The owl", "--greedy", "--max-tokens", 120, "--no-repeat-ngram", 2)
    pairs = list(zip(sample["tokens"], sample["tokens"][1:], strict=False))
    assert len(pairs) == len(set(pairs))
    (sample,) = records(lm, runs["bpe"], "The owl", "--max-tokens", 60, "--frequency-penalty", 100, "--seed", 0)
    assert len(sample["tokens"]) == len(set(sample["tokens"]))


def test_each_filter_has_an_effect_and_a_sample_stays_the_same_for_every_batch(lm, runs):
    flags = (runs["bpe"], "The owl", "--seed", 2, "--max-tokens", 40, "-n", 3, "--temperature", 1.5)
    tokens = [sample["tokens"] for sample in records(lm, *flags)]
    for name, value in (
        ("--min-p", 0.3), ("--typical", 0.3), ("--repetition-penalty", 2), ("--presence-penalty", 3),
        ("--frequency-penalty", 3), ("--no-repeat-ngram", 1), ("--logit-bias", " =5"),
    ):  # fmt: skip
        filtered = [sample["tokens"] for sample in records(lm, *flags, name, value)]
        assert filtered != tokens, name
        alone = [sample["tokens"] for sample in records(lm, *flags, name, value, "--batch-size", 1)]
        assert alone == filtered, name


def test_alternatives_are_the_best_tokens_at_each_position(lm, runs):
    (sample,) = records(lm, runs["bpe"], "The owl", "--max-tokens", 6, "--greedy", "--top-alternatives", 3)
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    for token, logprob, best in zip(sample["tokens"], sample["logprobs"], sample["alternatives"], strict=True):
        assert [list(one) for one in best] == [["token", "text", "logprob"]] * 3
        assert best[0]["token"] == token
        assert best[0]["logprob"] == approx(logprob, terms=1)
        assert best[0]["text"] == tokenizer.token_bytes(token).decode(errors="replace")
        assert [one["logprob"] for one in best] == sorted((one["logprob"] for one in best), reverse=True)


def test_a_beam_gives_the_best_texts_with_their_scores(lm, runs):
    flags = (runs["bpe"], "The owl", "--max-tokens", 12)
    best = records(lm, *flags, "--beam", 4, "-n", 3)
    assert len(best) == 3
    for sample in best:
        assert list(sample) == ["prompt", "text", "tokens", "logprobs", "score", "finish_reason"]
        assert sample["score"] == pytest.approx(sum(sample["logprobs"]) / len(sample["tokens"]))
    assert [sample["score"] for sample in best] == sorted((sample["score"] for sample in best), reverse=True)
    (summed,) = records(lm, *flags, "--beam", 4, "--length-penalty", 0)
    assert summed["score"] == pytest.approx(sum(summed["logprobs"]))
    texts = ["The owl" + sample["text"].removesuffix("\n") + "\n" for sample in best]
    assert lm("generate", *flags, "--beam", 4, "-n", 3) == "<|endoftext|>\n".join(texts)
    greedy, one = records(lm, *flags, "--greedy"), records(lm, *flags, "--beam", 1)
    assert greedy[0]["tokens"] == one[0]["tokens"]


def test_stats_go_to_stderr_when_asked_for(capsys, runs):
    assert run(["generate", str(runs["bpe"]), "The", "--stats", "--seed", "9", "--max-tokens", "3"]) == 0
    error = capsys.readouterr().err
    assert "3 tokens" in error
    assert "seed 9" in error


def test_what_is_no_run_is_one_line_and_exit_code_1(capsys, tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        code, message = failure(capsys, "generate", path, "The")
        assert code == 1
        assert str(path) in message


def test_an_encoder_decoder_is_refused(capsys, runs):
    code, message = failure(capsys, "generate", runs["encoder"], "The")
    assert code == 2
    assert "encoder-decoder" in message


def test_bytes_that_are_no_text_are_refused(capsys, runs, stdin):
    stdin(b"The \xff owl")
    code, message = failure(capsys, "generate", runs["bpe"])
    assert code == 1
    assert "byte offset 4" in message
    code, message = failure(capsys, "generate", runs["char"], "The owl Q")
    assert code == 1
    assert "Q" in message


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "cli.main", *(str(argument) for argument in arguments)]


def test_ctrl_c_ends_with_what_there_is(runs):
    process = subprocess.Popen(
        command("generate", runs["bpe"], "The", "--max-tokens", 10**9, "--logit-bias", "0=-inf"),  # it never ends
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    begun = process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 130
    assert errors == b""
    assert begun.startswith(b"The")
    (begun + output).decode()
    assert output.endswith(b"\n")


def test_on_a_terminal_nothing_waits_for_a_key(runs):
    ours, theirs = pty.openpty()
    finished = subprocess.run(
        command("generate", runs["bpe"], "--max-tokens", 5), stdin=theirs, capture_output=True, timeout=900, check=True
    )
    os.close(ours)
    os.close(theirs)
    assert finished.stdout
    assert finished.stderr == b""


def test_the_prompt_is_bold_on_a_terminal(runs, tmp_path):
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        command("generate", runs["bpe"], "The owl", "--max-tokens", 2), stdin=theirs, stdout=theirs,
        stderr=subprocess.PIPE, env=environment, timeout=900, check=True,
    )  # fmt: skip
    written = os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)
    assert written.startswith(b"\x1b[1mThe owl\x1b[0m")


def test_a_prompt_may_end_anywhere(runs, lm):
    for prompt in ("The owl ", "The owl saw the fo"):
        given = ("generate", runs["bpe"], prompt, "--greedy", "--max-tokens", 8)
        healed, plain = (json.loads(lm(*given, "--json", *flag)) for flag in ((), ("--no-token-healing",)))
        assert healed["prompt"] == plain["prompt"] == prompt
        assert healed["text"] != plain["text"]
        assert lm(*given).removesuffix("\n") == (prompt + healed["text"]).removesuffix("\n")
    prompt = ("generate", runs["char"], "The owl ", "--greedy", "--max-tokens", 8)
    assert lm(*prompt) == lm(*prompt, "--no-token-healing")
