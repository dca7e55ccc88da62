"""Preparing a corpus: what is stored, what is held out, and that interruptions, processes and parts change nothing."""

import json
import multiprocessing
import random

import numpy as np
import pytest

from lm.config.run_config import END_OF_TEXT, DataConfig, ParallelTextConfig, TokenizerConfig
from lm.corpus import MANIFEST, SPLITS, Manifest, open_split, read_held_out
from lm.corpus import prepare as preparing
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import hash_text, scan_corpus, train_tokenizers
from lm.errors import InputError
from lm.tokenizer import training
from tests.lm.corpus import small_examples, small_pairs
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written
from tests.lm.disk_faults import Dies

BYTES = byte_tokenizer()
DRAW = random.Random(5)
DOCUMENTS = ["".join(DRAW.choices("abcdé \n", k=DRAW.randrange(1, 90))) + "x" for _ in range(300)]
TEXT = f"\n{END_OF_TEXT}\n".join(DOCUMENTS)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(preparing, "CHUNK_BYTES", 1 << 11)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))


def arrays(folder):
    """All files of a store but the manifest, by name; without what a killed process left unfinished."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("[!.]*"))
        if path.is_file() and path.name not in (MANIFEST, "chunk.json")
    }


def chunk_inodes(folder):
    return {path.parent.name: path.stat().st_ino for path in folder.glob("chunk-*/chunk.json")}


def decoded(folder, split, tokenizer=BYTES):
    tokens = open_split(folder, split)
    return [tokenizer.decode(part) for part in np.split(*_cut(tokens.read(0, len(tokens)), tokenizer))]


def _cut(ids, tokenizer):
    return ids, np.flatnonzero(ids == tokenizer.start_of_text)[1:]


def test_documents_are_stored_once_and_held_out_by_hash(tmp_path):
    prepared = prepare(written(tmp_path, TEXT), BYTES, DataConfig(validation="0.2"))
    stored = {split: [text for text in decoded(prepared.folder, split) if text] for split in SPLITS}
    ended = [f"{text}\n" for text in DOCUMENTS[:-1]] + DOCUMENTS[-1:]
    bound = 2**64 // 5
    assert stored["validation"] == [text for text in ended if hash_text(text) < bound]
    assert stored["train"] == [text for text in ended if hash_text(text) >= bound]
    assert len(prepared.manifest.chunks) > 3
    again = prepare(written(tmp_path, TEXT), BYTES, DataConfig(validation="0.2"))
    assert (again.reused, again.folder) == (True, prepared.folder)


def test_few_documents_hold_out_the_end_of_each_file(tmp_path):
    texts = "a" * 100 + "é" * 50, "b" * 400
    prepared = prepare(written(tmp_path, *texts), BYTES, DataConfig(validation="0.1"))
    assert "".join(decoded(prepared.folder, "train")) == texts[0][:140] + texts[1][:360]
    assert "".join(decoded(prepared.folder, "validation")) == texts[0][140:] + texts[1][360:]
    assert prepare(written(tmp_path, *texts), BYTES).folder == prepared.folder  # a tenth is the default


def test_larger_corpora_hold_out_a_smaller_fraction(tmp_path):
    manifest = prepare(written(tmp_path, "a" * 4_000_000), BYTES).manifest
    assert {name: split.bytes for name, split in manifest.splits.items()} == {"train": 3_800_000, "validation": 200_000}


def test_any_text_survives(tmp_path):
    draw = random.Random(1)
    points = (draw.randrange(1, 0x110000 - 0x800) for _ in range(20_000))
    text = "".join(chr(point + 0x800 * (point >= 0xD800)) for point in points)
    prepared = prepare(written(tmp_path, text), BYTES, DataConfig(validation="0"))
    assert "".join(decoded(prepared.folder, "train")) == text


@pytest.mark.parametrize("kind", ["text", "examples", "pairs"])
def test_processes_and_parts_change_nothing(tmp_path, kind):
    if kind == "pairs":
        words = [f"{number} {'wort ' * (number % 7)}" for number in range(400)]
        corpus = small_pairs.corpus(tmp_path, words, words[::-1], validation="0.1")
    elif kind == "examples":
        file = small_examples.source(tmp_path, small_examples.lines(small_examples.drawn(600)))
        corpus = scan_corpus([file], DataConfig(validation="0.1"))
    else:
        corpus = scan_corpus(written(tmp_path, TEXT), DataConfig(validation="0.1"))
    one = prepare_corpus(corpus, BYTES, folder=tmp_path / "one", workers=1)
    two = prepare_corpus(corpus, BYTES, folder=tmp_path / "two", workers=2)
    for number in (3, 1, 2):
        part = prepare_corpus(corpus, BYTES, folder=tmp_path / "parts", part=(number, 3), workers=1)
        with pytest.raises(InputError, match="holds no prepared data"):
            Manifest.read(part.folder)
    chunks = chunk_inodes(tmp_path / "parts")
    joined = prepare_corpus(corpus, BYTES, folder=tmp_path / "parts")
    assert chunk_inodes(joined.folder) == chunks
    assert len(chunks) > 3
    assert arrays(one.folder) == arrays(two.folder) == arrays(joined.folder)
    assert one.manifest == two.manifest == joined.manifest


def dying(corpus, folder, number):
    """Prepare a corpus in a process that dies before the operation of a number on the files of a folder."""
    with Dies(folder, number).watching():
        prepare_corpus(corpus, BYTES, folder=folder, workers=1)


def test_a_preparation_killed_at_random_moments_keeps_what_is_finished(tmp_path):
    """No finished chunk is tokenized again, and the result is that of one run."""
    draw, folder = random.Random(1), tmp_path / "killed"
    corpus = scan_corpus(written(tmp_path, TEXT * 4), DataConfig(validation="0.1"))
    whole = prepare_corpus(corpus, BYTES, folder=tmp_path / "whole", workers=1)
    finished, interrupted = dict[str, int](), 0
    for _ in range(6):
        process = multiprocessing.get_context("fork").Process(target=dying, args=(corpus, folder, draw.randrange(400)))
        process.start()
        process.join()
        assert process.exitcode == Dies.STATUS
        now = chunk_inodes(folder)
        interrupted += 0 < len(now) < len(whole.manifest.chunks)
        assert finished.items() <= now.items()
        finished = now
    assert interrupted
    resumed = prepare_corpus(corpus, BYTES, folder=folder, workers=1)
    assert finished.items() <= chunk_inodes(folder).items()
    assert (arrays(resumed.folder), resumed.manifest) == (arrays(whole.folder), whole.manifest)


def test_damage_is_found_and_repaired(tmp_path):
    files = written(tmp_path, TEXT)
    first = prepare(files, BYTES, DataConfig(validation="0.1"))
    before, path = arrays(first.folder), next(first.folder.glob("*/train-tokens.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    second = prepare(files, BYTES, DataConfig(validation="0.1"))
    assert not second.reused
    assert arrays(second.folder) == before


def test_other_files_are_not_replaced(tmp_path):
    files, folder = written(tmp_path, TEXT), tmp_path / "tokens"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        prepare(files, BYTES, DataConfig(), folder)
    (folder / "thesis.txt").rename(folder / ".tokenizer.json.123")  # as a killed process leaves it
    prepare(files, BYTES, DataConfig(), folder)
    with pytest.raises(InputError, match="holds something else"):
        prepare(files, BYTES, DataConfig(validation="0.3"), folder)
    (folder / "my-chunk-notes").mkdir()
    other = prepare(files, BYTES, DataConfig(validation="0.3"), folder, force=True)
    assert {path.name for path in folder.glob("chunk*")} == {chunk.name for chunk in other.manifest.chunks}
    assert (folder / "my-chunk-notes").exists()


def as_example(prompt, completion):
    return {"prompt": prompt, "completion": completion}


def as_conversation(prompt, completion):
    return {"messages": [{"role": "user", "content": f"{prompt}?"}, {"role": "assistant", "content": completion}]}


@pytest.mark.parametrize("count", [30, 300])
def test_rows_are_held_out_by_their_text_with_copies_in_one_split(tmp_path, count):
    of_example, of_conversation = lambda row: "\0".join(row.values()), lambda row: json.dumps(row, ensure_ascii=False)
    for make, text in ((as_example, of_example), (as_conversation, of_conversation)):
        rows = [make(*pair) for pair in small_examples.drawn(count)]
        rows += rows[:7]
        file = small_examples.source(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
        prepared = prepare([file], BYTES.with_chat_template(), DataConfig(validation="0.2"))
        ranked = sorted({hash_text(text(row)) for row in rows})
        bound = ranked[int(len(ranked) * 0.2)] if count < 90 else 2**64 // 5
        assert [*read_held_out(prepared.folder)] == [row for row in rows if hash_text(text(row)) < bound]
        assert prepared.manifest.repeated == 0.0


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_a_tokenizer_of_pairs_has_the_end_that_they_need(tmp_path, kind):
    corpus = small_pairs.corpus(tmp_path, ["a", "b"], ["A", "B"])
    tokenizer, _ = train_tokenizers(corpus, TokenizerConfig(kind=kind, vocab_size=300))
    assert tokenizer.end_of_text is not None


def test_pairs_are_filtered_and_keep_their_trees(tmp_path):
    corpus = small_pairs.corpus(tmp_path, ["a", "", "c" * 20, "d"], ["A", "B", "C", "D" * 40])
    prepared = prepare_corpus(corpus, BYTES, parallel=ParallelTextConfig(max_length=20, max_ratio=9.0))
    train = prepared.manifest.splits["train"]
    assert (train.documents, train.left_out) == (1, 3)
    assert small_pairs.ids(prepared.folder) == ([BYTES.encode("a")], [BYTES.encode("A")])
    parsed = prepare_corpus(small_pairs.parsed_corpus(tmp_path, 50), BYTES)
    split = open_split(parsed.folder, "train")
    places = split.take(np.arange(split.documents), "places", "source_ends")
    assert places.values.shape == (split.record.source_tokens, 3)


def test_tokens_are_those_of_the_whole_text_across_chunks(tmp_path):
    text = "".join(random.Random(3).choices("abcd ef\n", k=100_000))
    tokenizer = training.train([text], TokenizerConfig(vocab_size=300), corpus_bytes=len(text))
    prepared = prepare(written(tmp_path, text), tokenizer, DataConfig(validation="0"))
    tokens = open_split(prepared.folder, "train")
    assert len(prepared.manifest.chunks) > 1
    assert tokens.read(1, len(tokens) - 1).tolist() == tokenizer.encode(text)
    assert tokens.read(30_000, 30_010).tolist() == tokenizer.encode(text)[29_999:30_009]
