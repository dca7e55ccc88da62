"""Configs describe and check themselves."""

import dataclasses
import itertools
import math

import pytest

from lm.config import options
from lm.config.data import DataConfig
from lm.config.decoding import BeamConfig, ClassificationConfig, FillConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig, PerplexityConfig, ScoringConfig
from lm.config.hardware import WorkersConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run_config import SECTIONS
from lm.config.serving import ServerConfig
from lm.config.training import TrainingConfig
from lm.errors import UsageError


@pytest.mark.parametrize("config", SECTIONS.values())
def test_every_field_of_every_section_is_described(config):
    names = {field.name for field in dataclasses.fields(config)}
    described = {option.name for option in options.list_options(config)}
    assert names - described == ({"vocab_size", "source_vocab_size", "labels"} if config is ModelConfig else set())


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


CONFIGS = (*SECTIONS.values(), SamplingConfig, BeamConfig, TranslationConfig, FillConfig, ClassificationConfig,
           PerplexityConfig, ScoringConfig, AttentionConfig, WorkersConfig, ServerConfig)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_are_finite_and_texts_are_utf8(config):
    for described in options.list_options(config):
        if described.kind is float:
            for value in (float("inf"), float("-inf"), float("nan"), 10**400):
                with pytest.raises(UsageError, match=f"{described.name} must be a finite number"):
                    described.check(value)
        elif described.kind in (str, tuple) and not (described.choices or described.may_name_files):
            for surrogate in "\ud800\udce9\udfff":
                with pytest.raises(UsageError, match=f"{described.name} is not valid UTF-8"):
                    described.check(surrogate if described.kind is str else ["one", f"caf{surrogate}"])
            described.check("café 狐" if described.kind is str else ["café 狐"])


COUNTS_FROM_ZERO = {"global_blocks", "random_blocks", "warmup_steps", "bleu_sentences", "seed", "max_length_extra"}
RANGES = {
    (
        0,
        1,
    ): "rotary_fraction bpe_dropout bpe_dropout_until final_learning_rate_fraction decay_fraction top_p min_p typical",
    (0, 0.99): "dropout attention_dropout label_smoothing",
    (0, 0.9999): "beta1",
    (0, 0.99999): "beta2 ema",
    (0.001, 0.999): "masking_rate",
    (0.001, None): "rope_slow",
    (1, None): "rope_base rope_factor max_ratio",
    (0, 10): "length_penalty",
    (0, 100): "coverage_penalty",
    (0, 1000): "softcap source_loss temperature max_length_ratio",
    (0.01, 1000): "repetition_penalty",
    (-1000, 1000): "presence_penalty frequency_penalty",
    (0, 1e9): "learning_rate weight_decay",
    (0.1, None): "timeout",
    (1, 1024): "threads beam processes ServerConfig.batch_size max_samples",
    (1, 100_000): "max_requests",
    (0, 100_000): "resamples",
    (1, 10_000): "n_layers",
    (0, 10_000): "n_encoder_layers",
    (2, 2**31 - 1): "attention_stride",
    (1, 2**31): "min_frequency",
    (1, 2**40): "TrainingConfig.batch_size TrainingConfig.batch_tokens",
    (0, 2**64 - 1): "TrainingConfig.seed",
    (0, 65535): "port",
    (257, 2**20): "vocab_size",
    (2, None): "ServerConfig.max_length",
    (1024, None): "max_body",
    (16, None): "prefill_chunk",
}


def expected_range(config, described):
    """By name, or else: lengths of a model fit int32, and counts begin at one, unless zero has a meaning."""
    named = {name: limits for limits, names in RANGES.items() for name in names.split()}
    name = described.name
    may_be_zero = described.default == 0 or "0:" in described.help or name in COUNTS_FROM_ZERO
    minimum = 0 if may_be_zero or described.kind is float else 1
    is_length = config in (ModelConfig, LoraConfig) and described.kind is int
    usual = minimum, 2**31 - 1 if is_length else None
    return named.get(f"{config.__name__}.{name}", named.get(name, usual))


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_have_limits_which_are_allowed_themselves(config):
    numbers = [each for each in options.list_options(config) if each.kind in (int, float)]
    assert {each.name: (each.minimum, each.maximum) for each in numbers} == {
        each.name: expected_range(config, each) for each in numbers
    }
    for each in numbers:
        for limit, outside in ((each.minimum, -math.inf), (each.maximum, math.inf)):
            if limit is not None:
                each.check(limit)
                beyond = limit + int(math.copysign(1, outside)) if each.kind is int else math.nextafter(limit, outside)
                with pytest.raises(UsageError, match=f"^{each.name} must be at (least|most) "):
                    config(**{each.name: beyond})


@pytest.mark.parametrize("config", CONFIGS)
def test_an_option_has_a_default_that_it_allows_and_a_sentence(config):
    for each in options.list_options(config):
        each.check(each.default)
        assert each.help.endswith((".", "]"))


@pytest.mark.parametrize("kind", [int, float])
def test_without_a_maximum_a_number_fits_the_type_that_computes_with_it(kind):
    described = options.Option("n", kind, (), False, 0, "N.", None, None, "--n")
    largest = {int: 2**63 - 1, float: 1e30}[kind]
    for sign in (1, -1):
        described.check(sign * largest)
        with pytest.raises(UsageError, match="^n must be at most "):
            described.check(sign * largest * 2)


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
