"""Training on conversations as whole commands: what is learned, starts from other runs, resumed, scored, refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_tokenizers, load_weights
from lm.config.run_config import IGNORE_INDEX
from lm.run_folder import find_checkpoint, load_config
from lm.training.training_corpus import open_data
from tests.system.conftest import assert_resumes_exactly
from tests.tolerances import approx

NAMES = ["Ann", "Bob", "Cid", "Dora", "Eve", "Finn"]
SHAPE = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "192"]
LENGTH = ["--steps", "8", "--batch-size", "4", "--evaluate-every", "4", "--set", "training.keep_checkpoints=0"]


def write_conversations(path: Path, n: int = 40) -> list[list[dict[str, str]]]:
    """Write conversations of one to three turns, a third of them with a system prompt; return their messages."""
    found = []
    for number in range(n):
        name = NAMES[number % len(NAMES)]
        messages = [{"role": "system", "content": "Be brief."}] * (number % 3 == 0)
        for turn in range(1, 2 + number % 3):
            messages += [
                {"role": "user", "content": f"I am {name}. What is {number} plus {turn}?"},
                {"role": "assistant", "content": f"Hello {name}, it is {number + turn}."},
            ]
        found.append(messages)
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in found), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A folder with conversations, a run trained on them, and a run trained on text."""
    folder = tmp_path_factory.mktemp("chats")
    write_conversations(folder / "chats.jsonl")
    (folder / "text.txt").write_text("the cat sat on the mat, and I am Ann. " * 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        assert run(["train", str(folder / "chats.jsonl"), "-o", str(folder / "run"), *SHAPE, *LENGTH]) == 0
        assert run(["train", str(folder / "text.txt"), "-o", str(folder / "base"), *SHAPE, *LENGTH]) == 0
        yield folder


def open_run(folder: Path):
    config = load_config(find_checkpoint(folder))
    return open_data(Path(config.plan.data), config), load_tokenizers(find_checkpoint(folder))[0]


def expected_rows(tokenizer, messages: list[dict[str, str]]) -> list[tuple[int, int]]:
    """Return each token with its target, built from the messages one by one."""
    special = tokenizer.special_tokens
    tokens, learned = [special["<|endoftext|>"]], [False]
    for message in messages:
        content = tokenizer.encode(message["content"])
        is_reply = message["role"] == "assistant"
        tokens += [special[f"<|{message['role']}|>"], *content, special["<|end|>"]]
        learned += [False] + [is_reply] * (len(content) + 1)
    targets = [token if counts else IGNORE_INDEX for token, counts in zip(tokens[1:], learned[1:], strict=True)]
    return list(zip(tokens[:-1], targets, strict=True))


def test_the_loss_falls_on_the_tokens_of_the_assistant_alone(place):
    data, tokenizer = open_run(place / "run")
    messages = [json.loads(line)["messages"] for line in (place / "chats.jsonl").read_text().splitlines()]
    expected = {tuple(expected_rows(tokenizer, each)) for each in messages}
    seen = set()
    for start in range(0, data.samples, 4):
        batch = data.batch(start)
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            last = max(place for place, target in enumerate(targets) if target != IGNORE_INDEX)
            seen.add(tuple(zip(inputs[: last + 1], targets[: last + 1], strict=True)))
    assert seen <= expected
    assert len(seen) == data.samples
    assert data.tokens == sum(target != IGNORE_INDEX for row in seen for _, target in row)
    held_out = sum(batch.rows for batch in data.validation())
    assert held_out + data.samples == len(messages)


def test_resuming_equals_never_having_stopped(place, tmp_path):
    assert_resumes_exactly(place / "run", tmp_path / "part", step=4)


def test_perplexity_counts_replies_alone(place, capsys):
    assert run(["perplexity", str(place / "run"), str(place / "chats.jsonl"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    _, tokenizer = open_run(place / "run")
    messages = [json.loads(line)["messages"] for line in (place / "chats.jsonl").read_text().splitlines()]
    replies = [each["content"] for one in messages for each in one if each["role"] == "assistant"]
    assert report["total"]["tokens"] == sum(len(tokenizer.encode(reply)) + 1 for reply in replies)
    assert report["total"]["bytes"] == sum(len(reply.encode()) for reply in replies)
    assert report["unit"] == "assistant token"


def test_held_out_loss_of_training_and_of_perplexity_agree(place, capsys, monkeypatch):
    """Without a file, the held-out split is scored."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run(["perplexity", str(place / "run"), "--json", "--dtype", "float32"]) == 0
    measured = json.loads(capsys.readouterr().out)["total"]
    logged = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min(line["validation_loss"] for line in logged if "validation_loss" in line)
    assert measured["nats"] / measured["tokens"] == approx(best)


def test_a_text_model_gets_role_tokens(place, tmp_path):
    command = ["train", str(place / "chats.jsonl"), "--from", str(place / "base"), "-o", str(tmp_path / "run")]
    assert run([*command, "--steps", "1", "--learning-rate", "1e-9", "--evaluate-every", "0"]) == 0
    old, new = load_weights(place / "base"), load_weights(tmp_path / "run")
    runs = tmp_path / "run", place / "base"
    tokenizer, before = (load_tokenizers(find_checkpoint(each))[0] for each in runs)
    assert tokenizer.vocab_size == before.vocab_size + 4
    resized = [name for name in old if old[name].shape != new[name].shape]
    assert resized
    for name in resized:
        torch.testing.assert_close(new[name][: before.vocab_size], old[name], rtol=0, atol=1e-5)
        mean = old[name].mean(dim=0).expand(4, -1)
        torch.testing.assert_close(new[name][before.vocab_size :], mean, rtol=0, atol=1e-5)


def test_conversations_without_a_reply_in_the_context_are_left_out(place, tmp_path, capsys):
    lines = (place / "chats.jsonl").read_text().splitlines(keepends=True)
    long = [{"role": "user", "content": "owl " * 300}, {"role": "assistant", "content": "No."}]
    (tmp_path / "few.jsonl").write_text("".join(lines))
    (tmp_path / "more.jsonl").write_text("".join([*lines, f"{json.dumps({'messages': long})}\n"]))
    tokenizer = ["--tokenizer", str(place / "run"), "--validation", "0"]
    for name in ("few", "more"):
        command = ["train", str(tmp_path / f"{name}.jsonl"), *tokenizer, "-o", str(tmp_path / name)]
        assert run([*command, *SHAPE, *LENGTH]) == 0
    few, more = (load_weights(tmp_path / name) for name in ("few", "more"))
    assert all(torch.equal(few[name], more[name]) for name in few)
    scores = []
    for name in ("few", "more"):
        capsys.readouterr()
        assert run(["perplexity", str(tmp_path / "few"), str(tmp_path / f"{name}.jsonl")]) == 0
        scores.append(capsys.readouterr().out.splitlines()[1].split()[1:])
    assert scores[0] == scores[1]
