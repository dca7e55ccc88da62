"""Partitions that were made apart join to what one machine makes, and only if all of them are there and whole."""

import shutil
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.corpus import text_corpus
from lm.corpus.manifest import PartitionManifest
from lm.corpus.partitions import join_partitions, prepare_partition
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepared_folder import PreparedFolder, locked_folder
from lm.corpus.text_corpus import Corpus, scan_corpus
from lm.errors import InputError
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import byte_tokenizer, written
from tests.lm.corpus.test_prepare_corpus import contents, texts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(text_corpus, "CHUNK_BYTES", 3000)


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return scan_corpus(written(tmp_path, texts(80), texts(50, seed=1), "short"), DataConfig())


def made(
    corpus: Corpus, folder: Path, number: int, count: int, tokenizer: Tokenizer | None = None
) -> PreparedFolder[PartitionManifest]:
    return prepare_partition(corpus, tokenizer or byte_tokenizer(), folder, number=number, count=count, processes=1)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_joined_they_are_what_one_makes(count, corpus, gpt2, tmp_path):
    partitions = [tmp_path / f"part-{number}" for number in range(1, count + 1)]
    for number, folder in enumerate(partitions, 1):
        made(corpus, folder, number, count, gpt2)
    joined = join_partitions(partitions[::-1], folder=tmp_path / "joined")
    whole = prepare_corpus(corpus, gpt2, folder=tmp_path / "whole", processes=1)
    assert contents(tmp_path / "joined") == contents(tmp_path / "whole")
    assert (joined.manifest, joined.reused) == (whole.manifest, False)
    assert join_partitions(partitions, folder=tmp_path / "whole").reused


def test_no_part_is_made_twice(corpus, tmp_path):
    first, second = made(corpus, tmp_path / "a", 1, 2), made(corpus, tmp_path / "b", 2, 2)
    assert set(first.manifest.own_chunks).isdisjoint(second.manifest.own_chunks)
    assert first.manifest.chunks == second.manifest.chunks
    assert len(first.manifest.own_chunks) + len(second.manifest.own_chunks) == len(first.manifest.chunks)
    shutil.rmtree(tmp_path / "a" / "parts" / first.manifest.own_chunks[0])
    again = made(corpus, tmp_path / "a", 1, 2)
    assert (first.chunks_reused, again.chunks_reused) == (0, len(first.manifest.own_chunks) - 1)


def test_a_missing_partition_is_named(corpus, tmp_path):
    made(corpus, tmp_path / "a", 2, 3)
    with pytest.raises(InputError, match="partitions are missing: 1/3, 3/3; make them, and name them too"):
        join_partitions([tmp_path / "a"], folder=tmp_path / "out")
    with pytest.raises(InputError, match="not a folder of a partition's chunks"):
        join_partitions([tmp_path / "a", tmp_path], folder=tmp_path / "out")


def test_partitions_of_other_corpora_are_refused(corpus, gpt2, tmp_path):
    made(corpus, tmp_path / "a", 1, 2)
    made(corpus, tmp_path / "b", 2, 2, gpt2)
    with pytest.raises(InputError, match="b: a partition of another corpus, or by another tokenizer, than .*a$"):
        join_partitions([tmp_path / "a", tmp_path / "b"], folder=tmp_path / "out")
    gpt2.save(tmp_path / "a" / "tokenizer.json")
    made(corpus, tmp_path / "c", 2, 2)
    with pytest.raises(InputError, match=r"tokenizer\.json: not the tokenizer of the partition"):
        join_partitions([tmp_path / "a", tmp_path / "c"], folder=tmp_path / "out")


def test_damage_is_named_with_the_partition_to_make_again(corpus, tmp_path):
    found = made(corpus, tmp_path / "a", 1, 1)
    path = tmp_path / "a" / "parts" / found.manifest.own_chunks[1] / "train-tokens.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"{found.manifest.own_chunks[1]}: missing or damaged; .*") as caught:
        join_partitions([tmp_path / "a"], folder=tmp_path / "out")
    assert caught.value.settings == ("part=1/1",)
    assert not (tmp_path / "out").exists()
    for text in ("{", "[]", '{"format_version": 1}', '{"format_version": 9}'):
        (tmp_path / "a" / "manifest.json").write_text(text)
        with pytest.raises(InputError, match=r"manifest\.json: "):
            join_partitions([tmp_path / "a"], folder=tmp_path / "out")


def test_a_folder_with_something_else_is_left_alone(corpus, gpt2, tmp_path):
    made(corpus, tmp_path / "a", 1, 2)
    with pytest.raises(InputError, match="a: holds another partition already; choose another folder"):
        made(corpus, tmp_path / "a", 2, 2)
    prepare_partition(corpus, gpt2, tmp_path / "a", number=2, count=2, force=True, processes=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds no partition of a corpus"):
        made(corpus, tmp_path / "b", 2, 2)
    with locked_folder(tmp_path / "a"), pytest.raises(InputError, match="another process is writing it"):
        made(corpus, tmp_path / "a", 1, 2)
