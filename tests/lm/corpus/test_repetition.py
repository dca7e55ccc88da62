from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import repetition, shards
from lm.corpus.manifest import Repetition
from lm.corpus.repetition import TokenizedDocuments, measure_repetition
from lm.text.files import TextFile
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import prepare
from tests.lm.tokenizers_elsewhere import gpt2_like, llama2_like

SEPARATOR = "<|endoftext|>"


class Held:
    """Tokens in memory."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        assert 0 <= start <= stop <= len(self.ids)
        return self.ids[start:stop]


def split(documents: list[list[int]], *, before: int = 0) -> TokenizedDocuments:
    """A split of these documents; `before` tokens stand in front of the first and belong to none."""
    ids = [7] * before + [token for document in documents for token in document]
    edges = before + np.cumsum([0, *map(len, documents)])
    return TokenizedDocuments(Held(np.array(ids, dtype=np.int64)), edges)


def slowly(train: list[list[int]], held_out: list[list[int]], window: int) -> tuple[int, float]:
    """What is documented, with sets of tuples."""
    joined = [token for document in train for token in document]
    windows = {tuple(joined[i : i + window]) for i in range(len(joined) - window + 1)}
    whole = {tuple(document) for document in train}
    found = tokens = 0
    for document in held_out:
        for place in range(len(document)):
            begin = min(place, len(document) - window)
            short = len(document) < window
            found += tuple(document) in whole if short else tuple(document[begin : begin + window]) in windows
        tokens += len(document)
    documents = [tuple(document) for document in train + held_out]
    return len(documents) - len(set(documents)), found / tokens


@pytest.mark.parametrize("block", [16, 37, 1 << 16])
@pytest.mark.parametrize("seed", range(8))
def test_equals_a_search_with_sets(block: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "_BLOCK", block)
    monkeypatch.setattr(repetition, "_MOST_HELD", block // 2)  # the hashes of more documents are in a file
    draw = random.Random(seed)

    def documents(number: int) -> list[list[int]]:
        return [draw.choices((1, 2), weights=(5, 1), k=draw.randint(1, 60)) for _ in range(number)]

    train, held_out, window = documents(40), documents(15), draw.choice([1, 3, 8, 20, 50])
    held_out += [train[3], train[5], train[5]]
    before = draw.choice([0, 1])
    found = measure_repetition(split(train, before=before), split(held_out, before=before), vocab_size=9, window=window)
    # The token before the first document is trained on too, but no held-out document has it.
    assert (found.documents, found.held_out) == slowly(train, held_out, window)
    assert found.stretch == window


def test_many_places_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "_SAMPLES", 500)
    draw = np.random.default_rng(0)
    copied, new, other = (draw.integers(0, 1000, size).tolist() for size in (30_000, 70_000, 50_000))
    found = measure_repetition(
        split([other, copied]), split([new[:10_000], copied, new[10_000:]]), vocab_size=1000, window=10
    )
    assert found.held_out == pytest.approx(0.3, abs=0.01)


def test_a_split_may_be_empty() -> None:
    assert measure_repetition(split([[1, 2], [1, 2]]), split([]), vocab_size=3, window=2) == Repetition(1, None, 2)


# Through the whole preparation.


def text(seed: int, lines: int) -> str:
    """Random lines of 40 characters."""
    draw = random.Random(seed)
    return "".join("".join(draw.choices("abcdefghijklm     ", k=39)) + "\n" for _ in range(lines))


def made(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=400)  # type: ignore[arg-type]
    sample = text(0, 300)
    return training.train([sample], config, corpus_bytes=len(sample)).tokenizer


def prepared(folder: Path, tokenizer: Tokenizer, train: list[str], held_out: list[str] | None = None) -> Repetition:
    """What is found in a corpus of documents that is prepared, and then read again."""
    for name, texts in (("train", train), ("held-out", held_out or [])):
        (folder / f"{name}.txt").write_text(f"{SEPARATOR}\n".join(texts))
    validation = "0" if held_out is None else str(folder / "held-out.txt")
    sources = [TextFile("train.txt", folder / "train.txt")]
    manifest = prepare(sources, tokenizer, DataConfig(validation=validation), folder / "out").manifest
    assert shards.read_manifest(folder / "out") == manifest
    assert manifest.repetition is not None
    return manifest.repetition


class TestPreparedCorpora:
    @pytest.fixture(params=("char", "byte", "bpe", "gpt2", "llama2"))
    def tokenizer(self, request: pytest.FixtureRequest) -> Tokenizer:
        """Those of characters have no special tokens, that like Llama's has two to a document, the others one."""
        kind: str = request.param
        if kind in ("gpt2", "llama2"):
            return Tokenizer({"gpt2": gpt2_like, "llama2": llama2_like}[kind]())
        return made(kind)

    @pytest.mark.parametrize("copies", [0, 1, 5])
    def test_copied_documents_are_counted(self, tokenizer: Tokenizer, copies: int, tmp_path: Path) -> None:
        texts = [text(seed, 1 + 8 * (seed % 3)) for seed in range(10)]
        assert prepared(tmp_path, tokenizer, texts + texts[:copies] * 2).documents == 2 * copies

    def test_copies_in_the_other_split_count_too(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        texts = [text(seed, 4) for seed in range(10)]
        assert prepared(tmp_path, tokenizer, texts, [texts[2], text(99, 4), texts[7]]).documents == 2

    def test_held_out_text_from_the_training_split_is_found(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        texts = [text(seed, 60) for seed in range(10)]
        middle = "".join(texts[4].splitlines(keepends=True)[7:50])
        share = prepared(tmp_path, tokenizer, texts, [texts[0], middle, texts[6]]).held_out
        assert share is not None
        assert share > 1 - 1.2 * 200 / (163 * 40)  # the window at the end of the middle may be another

    def test_short_documents_are_found_whole(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        texts = [text(seed, 1) for seed in range(40)]
        share = prepared(tmp_path, tokenizer, texts[:30], texts[20:]).held_out
        assert share == pytest.approx(0.5, abs=0.05)

    def test_other_text_is_not_found(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        texts = [text(seed, 60) for seed in range(12)]
        assert prepared(tmp_path, tokenizer, texts[:9], texts[9:]).held_out == 0

    def test_the_size_of_shards_and_blocks_does_not_matter(
        self, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = [text(seed, 20) for seed in range(9)]
        arguments = tokenizer, [*texts[:6], texts[2]], [*texts[6:], texts[1], texts[4][:400]]
        (tmp_path / "whole").mkdir()
        (tmp_path / "parts").mkdir()
        whole = prepared(tmp_path / "whole", *arguments)
        monkeypatch.setattr(repetition, "_BLOCK", 1000)
        monkeypatch.setitem(shards.ShardWriter.__init__.__kwdefaults__, "shard_tokens", 777)
        assert prepared(tmp_path / "parts", *arguments) == whole
        assert (tmp_path / "parts" / "out" / "train-00001.npy").exists()


def test_a_manifest_from_before_is_read(tmp_path: Path) -> None:
    prepared(tmp_path, made("byte"), [text(0, 9)])
    path = tmp_path / "out" / "manifest.json"
    values = json.loads(path.read_text())
    manifest = shards.read_manifest(tmp_path / "out")
    del values["repetition"]
    path.write_text(json.dumps(values))
    assert shards.read_manifest(tmp_path / "out") == dataclasses.replace(manifest, repetition=None)
