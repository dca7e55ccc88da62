"""A run starts from another's weights where they fit its model."""

import dataclasses

import pytest

from lm.errors import UsageError
from lm.training.corpus import TrainingCorpus
from lm.training.loop import train
from lm.training.startup import start_run
from tests.lm.training.conftest import loss_of


def test_starting_from_weights(make_run, shards, byte_tokenizer, tmp_path):
    first = make_run("first")
    list(train(first))
    weights = first.model.state_dict()
    second = start_run(tmp_path / "second", first.config, TrainingCorpus(shards, byte_tokenizer), weights=weights)
    assert loss_of(second) == loss_of(first)
    assert second.state.step == 0
    other = dataclasses.replace(first.config, model=dataclasses.replace(first.config.model, d_model=16))
    with pytest.raises(UsageError, match="don't fit this model"):
        start_run(tmp_path / "third", other, TrainingCorpus(shards, byte_tokenizer), weights=weights)
    assert not (tmp_path / "third").exists()
