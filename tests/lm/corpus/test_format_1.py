"""Folders that were prepared in format 1, each kind with a manifest of its own, are read, found and joined.

`format_1/` was written by the last version that wrote this format, of the files that lie there too.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import DataConfig, ParallelTextConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.corpus import parallel_corpus
from lm.corpus.manifest import Manifest, PairManifest, PartitionManifest, PreparedManifest
from lm.corpus.partitions import join_partitions
from lm.corpus.prepare_pairs import prepare_pairs
from lm.corpus.prepared_folder import cache_folder
from lm.text.parallel_text import find_parallel_texts
from lm.training.training_corpus import open_data, verify_data
from tests.lm.corpus.preparing import byte_tokenizer

FORMAT_1 = Path(__file__).with_name("format_1")
GPT = ModelConfig(context_length=16, d_model=16, n_layers=1, n_heads=2)
TRANSLATOR = ModelConfig(context_length=64, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folders, and the files that they were made from."""
    shutil.copytree(FORMAT_1, tmp_path / "before")
    monkeypatch.chdir(tmp_path / "before")
    return tmp_path / "before"


def test_each_kind_is_told(folder):
    read = {name: PreparedManifest.read(folder / name) for name in ("text", "examples", "pairs", "partition")}
    assert {name: manifest.kind for name, manifest in read.items()} == {name: name for name in read}
    assert [Manifest.read(folder / name).supervised for name in ("text", "examples")] == [False, True]
    assert PairManifest.read(folder / "pairs").languages == ("en", "de")
    assert PartitionManifest.read(folder / "partition").key == Manifest.read(folder / "text").key


def test_pairs_are_found_in_the_cache(folder, tmp_path):
    config = ParallelTextConfig()
    texts = find_parallel_texts(config, source=["a.en"], target=["a.de"])
    corpus = parallel_corpus.scan_parallel_corpus(texts, DataConfig(keep_line_ends=True, validation="0.25"), config)
    made = prepare_pairs(corpus, byte_tokenizer(), config, root=tmp_path / "now")
    before = cache_folder("pairs", made.manifest.key, root=tmp_path / "cache")
    shutil.copytree(folder / "pairs", before)
    found = prepare_pairs(corpus, byte_tokenizer(), config, root=tmp_path / "cache")
    assert (found.folder, found.reused, found.manifest) == (before, True, made.manifest)


def test_data_are_opened_and_verified(folder):
    for name, model in (("text", GPT), ("examples", GPT), ("pairs", TRANSLATOR)):
        verify_data(folder / name, advice="")
        data = open_data(folder / name, RunConfig(model, training=TrainingConfig(batch_size=2)))
        assert data.batch(0).rows == 2


def test_a_partition_is_joined(folder, tmp_path):
    joined = join_partitions([folder / "partition"], folder=tmp_path / "joined")
    assert joined.manifest == Manifest.read(folder / "text")
    shards = [np.load(each / "train-00000.npy").tolist() for each in (folder / "text", tmp_path / "joined")]
    assert shards[0] == shards[1]
