"""A folder is opened as what it holds; a kind of data that is added is asked as the others are."""

import dataclasses
from pathlib import Path

import pytest

from lm import files
from lm.config.data import DataConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.corpus import manifest
from lm.corpus.manifest import SourceRecord
from lm.data.example_data import ExampleData
from lm.data.pair_data import PairData
from lm.data.windows import WindowData
from lm.errors import InputError, UsageError
from lm.text.text_files import find_text_files
from lm.tokenizer import training
from lm.training import training_corpus
from lm.training.events import Evaluation, Step
from lm.training.loop import train
from lm.training.startup import resume_run, start_run
from lm.training.training_corpus import TrainingCorpus, check_model_fits_data, data_key, open_data, source_files
from tests.lm.corpus.preparing import prepare
from tests.lm.data.test_training_data import CountData, CountManifest

GPT = ModelConfig(context_length=8, d_model=16, n_layers=1, n_heads=2)

TRANSLATOR = ModelConfig(context_length=64, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2)

TRAINING = TrainingConfig(batch_size=3)


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    """Running text and examples, prepared."""
    (tmp_path / "text.txt").write_text("the owl saw the fox " * 20)
    (tmp_path / "task.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
    tokenizer = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer
    made = {}
    for name, supervised in (("text.txt", False), ("task.jsonl", True)):
        files = find_text_files([str(tmp_path / name)], DataConfig(supervised=supervised))
        config = DataConfig(validation="0", supervised=supervised)
        made[name] = prepare(files, tokenizer, config, tmp_path / f"{name}-out").folder
    return made


def test_a_folder_is_opened_as_what_it_holds(folders, stored):
    gpt, translator = RunConfig(GPT, training=TRAINING), RunConfig(TRANSLATOR, training=TRAINING)
    assert isinstance(open_data(folders["text.txt"], gpt), WindowData)
    assert isinstance(open_data(folders["task.jsonl"], gpt), ExampleData)
    assert isinstance(open_data(stored.folder, translator), PairData)


def test_a_folder_says_what_it_was_made_from(folders, stored):
    assert len({data_key(folder) for folder in (*folders.values(), stored.folder)}) == 3
    assert [Path(name).name for name in source_files(folders["text.txt"])] == ["text.txt"]
    assert [Path(name).name for name in source_files(stored.folder)] == ["train.en", "train.de"]


def test_an_empty_folder_holds_no_data(tmp_path):
    for ask in (data_key, source_files, lambda folder: open_data(folder, RunConfig())):
        with pytest.raises(InputError, match="not a folder of prepared data"):
            ask(tmp_path)


def test_pairs_are_for_an_encoder_decoder_and_nothing_else_is(folders):
    with pytest.raises(UsageError, match="pairs need an encoder-decoder"):
        check_model_fits_data(GPT, pairs=True)
    for folder in folders.values():
        with pytest.raises(UsageError, match="the model is an encoder-decoder, which needs pairs"):
            open_data(folder, RunConfig(TRANSLATOR, training=TRAINING))
        with pytest.raises(UsageError, match="for translation, which needs pairs"):
            open_data(folder, RunConfig(dataclasses.replace(GPT, decoder_only=True), training=TRAINING))
    check_model_fits_data(dataclasses.replace(GPT, decoder_only=True), pairs=True)


def test_what_each_kind_says_of_its_size(folders, stored):
    text, examples = (open_data(folders[name], RunConfig(GPT, training=TRAINING)) for name in folders)
    assert text.describe_batch_size() == "3 x 8 tokens"
    assert examples.describe_batch_size() == "3 examples"
    for size, words in ((None, "3 pairs"), (1200, "up to 1,200 tokens a side")):
        config = TrainingConfig(batch_size=3, batch_tokens=size)
        pairs = open_data(stored.folder, RunConfig(TRANSLATOR, training=config))
        assert pairs.describe_batch_size() == words


def test_no_kind_judges_the_size_of_the_model(folders, stored):
    for folder in folders.values():
        assert open_data(folder, RunConfig(GPT, training=TRAINING)).warnings() == []
    assert open_data(stored.folder, RunConfig(TRANSLATOR, training=TRAINING)).warnings() == []


def test_only_pairs_have_something_to_translate(folders, stored):
    for folder in folders.values():
        data = open_data(folder, RunConfig(GPT, training=TRAINING))
        assert (data.references(), data.tag) == ([], None)
    assert len(open_data(stored.folder, RunConfig(TRANSLATOR, training=TRAINING)).references(5)) == 5


def test_a_new_kind_takes_two_lines(tmp_path, monkeypatch):
    """Then a run on it starts, evaluates, and continues."""
    monkeypatch.setitem(manifest.MANIFEST_CLASSES, "count", CountManifest)
    monkeypatch.setitem(training_corpus.DATA_CLASSES, "count", (CountData, None))
    made = CountManifest(
        kind="count", key="count-10", sources=(SourceRecord("one to ten", 10, ""),), validation_sources=(), most=10
    )
    files.write_json(tmp_path / manifest.MANIFEST, made.to_dict())
    assert isinstance(open_data(tmp_path, RunConfig()), CountData)
    assert (data_key(tmp_path), source_files(tmp_path)) == ("count-10", ["one to ten"])
    config = RunConfig(
        GPT,
        training=TrainingConfig(steps=2, warmup_steps=1, evaluate_every=2),
        hardware=HardwareConfig(device="cpu", dtype="float32", threads=1),
    )
    tokenizer = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer
    events = list(train(start_run(tmp_path / "run", config, TrainingCorpus(tmp_path, tokenizer))))
    assert [type(event) for event in events[:3]] == [Step, Step, Evaluation]
    resumed = resume_run(tmp_path / "run", new_length=TrainingConfig(steps=3))
    assert [event.step for event in train(resumed) if isinstance(event, Step)] == [3]
