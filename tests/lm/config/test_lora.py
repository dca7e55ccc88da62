"""Settings of adapters say what goes together, and nothing without a rank."""

from __future__ import annotations

import pytest

from lm.config.hardware import DistributionConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.errors import UsageError


def test_without_a_rank_there_are_none():
    assert not LoraConfig()
    assert LoraConfig(rank=1)


@pytest.mark.parametrize(("on", "kinds"), [("attention", ("attention",)), ("feed-forward, attention",
                                                                         ("feed-forward", "attention"))])  # fmt: skip
def test_layers_are_named_with_commas(on, kinds):
    assert LoraConfig(rank=2, on=on).kinds == kinds


def test_what_is_added_is_multiplied_by_alpha_over_the_rank():
    assert LoraConfig(rank=4).scale == 2
    assert LoraConfig(rank=4, alpha=6).scale == 1.5
    assert LoraConfig(rank=4, alpha=0).scale == 0


@pytest.mark.parametrize(
    ("values", "problem"),
    [({"rank": 0}, "rank must be at least 1, not 0"), ({"rank": 2, "on": "atention"}, "did you mean 'attent"),
     ({"rank": 2, "on": ""}, "choose from attention, feed-forward")],
)  # fmt: skip
def test_what_cannot_be_is_refused(values, problem):
    with pytest.raises(UsageError) as raised:
        LoraConfig(**values)
    assert problem in str(raised.value)


def test_recurrent_layers_have_none():
    with pytest.raises(UsageError, match="leave them out"):
        RunConfig(ModelConfig(architecture="lstm"), lora=LoraConfig(rank=2))


def test_their_weights_are_not_shared_out():
    with pytest.raises(UsageError, match="leave one of the two out"):
        RunConfig(lora=LoraConfig(rank=2), distribution=DistributionConfig(shard=True))


def test_a_config_without_them_is_read_as_before():
    values = RunConfig().to_dict()
    del values["lora"]
    assert RunConfig.from_dict(values, where="config.json") == RunConfig()
    adapted = RunConfig(lora=LoraConfig(rank=3, on="attention"), base_sha256="0" * 64)
    assert RunConfig.from_dict(adapted.to_dict(), where="config.json") == adapted
