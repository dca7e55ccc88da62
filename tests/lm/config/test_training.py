"""Settings say what goes together: lengths of training, tokens of a corpus, adapters, decoding and exports."""

import pytest

from lm.config.data import DataConfig, ParallelTextConfig
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.export import ExportConfig
from lm.config.hardware import DistributionConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig, parse_duration
from lm.errors import UsageError


@pytest.mark.parametrize(
    ("values", "message"),
    [({"steps": 5, "epochs": 1.0}, "only one of steps, epochs"), ({"epochs": 0}, "epochs must be more than 0")],
)
def test_a_run_has_one_length(values, message):
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "cosine"}, "takes the schedule wsd"),
        ({"decay_fraction": 1.0}, "a decay_fraction below 1"),
        ({"steps": 3}, "only one of steps, budget"),
        ({"budget": "soon"}, r"a time is written like 90s, "),
    ],
)
def test_what_a_budget_does_not_go_with(values, message):
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**{"budget": "1m", "schedule": "wsd", **values})


def test_a_batch_goes_through_twice_with_r_drop():
    assert (TrainingConfig().forward_passes, TrainingConfig(r_drop=0.5).forward_passes) == (1, 2)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2m5s", 125), (" 1h ", 3600)]
)
def test_units_add_up(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0s", "m", "5 minutes", "1m1h", "-3m", "1.m", "ten"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="10m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (SamplingConfig, {"stop": ("",)}, "stop cannot be empty"),
        (TranslationConfig, {"max_length_ratio": 0, "max_length_extra": 0}, "no room for a translation"),
    ],
)
def test_what_leaves_nothing_to_draw_is_refused(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)


def test_a_held_out_file_may_have_any_name():
    assert DataConfig(validation="caf\udce9.txt").validation == "caf\udce9.txt"


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (DataConfig, {"label_column": "body", "text_column": "body"}, "text and label are two columns"),
        (ParallelTextConfig, {"bidirectional": True, "separate_vocabularies": True}, "share one vocabulary"),
        (ParallelTextConfig, {"source_language": "English!"}, r"a code such as de or pt-BR, "),
    ],
)
def test_what_contradicts_itself_is_refused(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)


@pytest.mark.parametrize(
    ("to", "number_type"), [("gguf", "q8_0"), ("gguf", "float16"), ("ctranslate2", "int8"), ("ctranslate2", "bfloat16")]
)
def test_types_that_a_system_has(to, number_type):
    assert ExportConfig(to=to, type=number_type).type == number_type


@pytest.mark.parametrize(
    ("to", "number_type", "message"),
    [("gguf", "int8", "gguf has no dtype 'int8'; choose from float32, float16, q8_0"),
     ("ctranslate2", "q8_0", "ctranslate2 has no dtype 'q8_0'; choose from float32, float16, bfloat16"),
     ("huggingface", "float16", "matrices keep the dtype of the run"),
     ("ollama", None, "to cannot be 'ollama'; choose from huggingface, peft, gguf, ctranslate2"),
     ("gguf", "q8", r"type cannot be 'q8'")],
)  # fmt: skip
def test_others_are_refused(to, number_type, message):
    with pytest.raises(UsageError, match=message):
        ExportConfig(to=to, type=number_type)


def test_matrices_are_float32_unless_another_type_is_asked_for():
    assert ExportConfig(to="gguf").type == "float32"
    assert ExportConfig(to="peft").type is None


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
