"""Training on conversations as whole commands: what is learned, started from, scored and left out."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_tokenizers, load_weights
from lm.run_folder import find_checkpoint
from lm.tokenizer import Tokenizer
from tests.tolerances import approx

NAMES = ["Ann", "Bob", "Cid", "Dora", "Eve", "Finn"]
SHAPE = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "192"]
LENGTH = ["--steps", "8", "--batch-size", "4", "--evaluate-every", "4"]


def write_conversations(path: Path) -> None:
    """Write conversations of one to three turns, a third of them with a system prompt."""
    found = []
    for number in range(40):
        name = NAMES[number % len(NAMES)]
        messages = [{"role": "system", "content": "Be brief."}] * (number % 3 == 0)
        for turn in range(1, 2 + number % 3):
            messages += [
                {"role": "user", "content": f"I am {name}. What is {number} plus {turn}?"},
                {"role": "assistant", "content": f"Hello {name}, it is {number + turn}."},
            ]
        found.append(messages)
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in found), encoding="utf-8")


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


def open_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizers(find_checkpoint(folder))[0]


def test_perplexity_counts_replies_alone(place, capsys):
    assert run(["perplexity", str(place / "run"), str(place / "chats.jsonl"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    tokenizer = open_tokenizer(place / "run")
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
    assert run([*command, "--steps", "1", "--evaluate-every", "0"]) == 0
    assert open_tokenizer(tmp_path / "run").vocab_size == open_tokenizer(place / "base").vocab_size + 4


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
