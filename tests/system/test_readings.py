"""A file is read once to survey it, once for a tokenizer that has to be trained, and once to be tokenized."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from lm.text import decode
from tests.lm.corpus.parallel_text import lines
from tests.system.conftest import SMALL
from tests.system.test_budget import steady  # noqa: F401 (a fixture)

BPE = [*SMALL[:-2], "--vocab-size", "300"]
PAIRS = ["--source", "text.en", "--target", "text.de"]
TINY = ["--vocab-size", "300", "--d-model", "32", "--n-layers", "1", "--set", "model.n_encoder_layers=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    sources, targets = lines(300)
    Path("text.txt").write_text("\n".join(sources))
    Path("text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in sources))
    Path("text.en").write_text("\n".join(sources))
    Path("text.de").write_text("\n".join(targets))
    pairs = zip(sources, targets, strict=True)
    Path("pairs.jsonl").write_text("".join(json.dumps({"source": one, "target": other}) + "\n" for one, other in pairs))
    examples = [json.dumps({"prompt": one, "completion": "x"}) + "\n" for one in sources]
    Path("few.jsonl").write_text("".join(examples[:40]))


@pytest.fixture
def readings(monkeypatch) -> Counter[str]:
    """How often each file has been read from its start to its end."""
    found: Counter[str] = Counter()
    blocks = decode.read_blocks

    def counted(path: Path, name: str) -> Iterator[bytes]:
        yield from blocks(path, name)
        found[name] += 1

    monkeypatch.setattr(decode, "read_blocks", counted)
    return found


@pytest.mark.parametrize(
    ("name", "flags", "first", "again"),
    [
        ("text.txt", ["--vocab-size", "300"], 3, 1),
        ("text.jsonl", ["--tokenizer", "char"], 3, 1),
        ("text.txt", ["--tokenizer", "byte"], 2, 1),
        ("few.jsonl", ["--vocab-size", "300"], 3, 1),
    ],
)
def test_preparing_reads_a_file_three_times_at_most(name, flags, first, again, readings):
    for expected in (first, again):
        readings.clear()
        assert run(["prepare", name, *flags]) == 0
        assert readings == {name: expected}
    readings.clear()
    assert run(["prepare", name, *flags, "-o", "out"]) == 0  # with a tokenizer that is trained already
    assert readings == {name: 2}


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        (["text.txt", *BPE], 3),
        (["few.jsonl", *BPE], 3),
        ([*PAIRS, "--preset", "translation-tiny", *TINY, "--set", "training.bleu_sentences=2"], 3),
    ],
)
def test_training_reads_a_file_as_preparing_does(corpus, expected, readings):
    for number, count in enumerate((expected, 1)):
        readings.clear()
        assert run(["train", *corpus, "--steps", "1", "--evaluate-every", "0", "-o", f"run-{number}"]) == 0
        assert set(readings.values()) == {count}


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("corpus", [["text.txt"], ["text.jsonl"], PAIRS, ["--pairs", "pairs.jsonl"]])
def test_a_budget_reads_nothing_again(corpus, readings):
    """Sizes of files tell how much text they hold, or else the survey does."""
    flags = TINY if len(corpus) > 1 else TINY[:-2]
    assert run(["train", *corpus, "--budget", "1s", *flags, "--batch-size", "4", "--dry-run"]) == 0
    assert set(readings.values()) == {3}
