"""Configs describe and check themselves."""

import dataclasses
import itertools

import pytest

from lm.config import options
from lm.config.data import DataConfig
from lm.config.decoding import BeamConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig, PerplexityConfig, ScoringConfig
from lm.config.model import ModelConfig
from lm.config.run_config import SECTIONS
from lm.config.training import TrainingConfig
from lm.errors import UsageError


@pytest.mark.parametrize("config", SECTIONS.values())
def test_every_field_of_every_section_is_described(config):
    names = {field.name for field in dataclasses.fields(config)}
    described = {option.name for option in options.list_options(config)}
    assert names - described == ({"vocab_size", "source_vocab_size", "labels"} if config is ModelConfig else set())
    assert all(option.help.endswith((".", "]")) for option in options.list_options(config))


def test_no_two_sections_share_a_flag():
    flags = [option.flag for config in SECTIONS.values() for option in options.list_options(config)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (ModelConfig, {"d_model": -4}, r"d_model must be at least 1, not -4"),
        (ModelConfig, {"d_model": 2.5}, "d_model must be an integer, not 2.5"),
        (ModelConfig, {"n_layers": True}, "n_layers must be an integer, not True"),
        (ModelConfig, {"positions": "rotory"}, r"did you mean 'rotary'\?"),
        (ModelConfig, {"dropout": 1.5}, "dropout must be at most 0.99, not 1.5"),
        (TrainingConfig, {"learning_rate": float("nan")}, "learning_rate must be a finite number, not nan"),
        (TrainingConfig, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        (TrainingConfig, {"seed": 2**64}, "seed must be at most 18446744073709551615, not 18446744073709551616"),
        (DataConfig, {"validation": 3}, "validation must be a word"),
    ],
)
def test_a_wrong_value_is_named(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)


CONFIGS = (*SECTIONS.values(), SamplingConfig, BeamConfig, TranslationConfig, PerplexityConfig, ScoringConfig,
           AttentionConfig)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_are_finite_and_texts_are_utf8(config):
    for described in options.list_options(config):
        if described.kind is float:
            for value in (float("inf"), float("-inf"), float("nan"), 10**400):
                with pytest.raises(UsageError, match=f"{described.name} must be a finite number"):
                    described.check(value)
        elif described.kind in (str, tuple) and not described.choices and described.name != "validation":
            for surrogate in "\ud800\udce9\udfff":
                with pytest.raises(UsageError, match=f"{described.name} is not valid UTF-8"):
                    described.check(surrogate if described.kind is str else ["one", f"caf{surrogate}"])


@pytest.mark.parametrize(
    ("word", "found"),
    [("--lr", "--learning-rate"), ("--lor", "--lora"), ("--stepz", "--steps"), ("xyz", None), ("", None)],
)
def test_what_is_meant_is_what_is_abbreviated_or_most_like(word, found):
    assert options.find_nearest(word, ["--lora", "--learning-rate", "--steps", "--depth"]) == found


def test_unknown_keys_suggest_the_nearest():
    with pytest.raises(UsageError, match=r"my.toml: unknown key 'learning_rte' \(did you mean 'learning_rate'\?\)"):
        options.build_config(TrainingConfig, {"learning_rte": 1}, where="my.toml")


EXTREMES = [0, -1, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 2**63, 10**400, -(10**400), 10**5000]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_number_is_one_that_a_computer_has_or_is_refused_in_a_line(config):
    numbers = [each for each in options.list_options(config) if each.kind in (int, float)]
    for described, value in itertools.product(numbers, EXTREMES):
        largest = 2**64 - 1 if described.kind is int else 1e30
        said = _refusal(described, value)
        if said is None:
            assert abs(value) <= largest
        else:
            assert described.name in said
            assert len(said) < 300


def _refusal(described, value) -> str | None:
    try:
        return described.check(value)
    except UsageError as error:
        return str(error)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Plain fields, which have no description."""

    tokens: int
    name: str = ""


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000, 2**64], ids=["400", "-400", "5,000", "2**64"])
def test_a_number_of_a_file_that_no_computer_has_is_refused(value):
    with pytest.raises(UsageError, match=r"^file: tokens must fit into 64 bits"):
        options.build_config(Counts, {"tokens": value}, where="file")
    with pytest.raises(UsageError, match="^file: name must be a word, not .{1,80}$"):
        options.build_config(Counts, {"tokens": 1, "name": value}, where="file")
