"""Families say something of every field of a model, and are told apart by it."""

import dataclasses
import json

import pytest
import transformers

from lm.config.model import ModelConfig
from lm.interop.hugging_face.configuration import from_json, parse_config, to_json
from lm.interop.hugging_face.families import FAMILIES, find_family
from tests.lm.interop.hugging_face.models import FIELDS, qwen2_tokenizer, random_config

ELSEWHERE = {
    "rope_base", "rotary_fraction", "rope_scaling", "rope_factor", "rope_context", "rope_slow", "rope_fast",
    "rope_temperature",
    "attention_window",
}  # fmt: skip
FOLLOWING = {
    "source_vocab_size", "recurrent_attention", "max_distance", "max_tree_distance", "experts_per_token",
    "expert_every", "expert_capacity", "gate_noise", "labels", "syntax", "attention_block", "global_blocks",
    "random_blocks", "attention_rank", "attention_stride",
}  # fmt: skip
"""Fields that only a model can have which is refused for another."""
OF_TRAINING = {"dropout", "attention_dropout", "zero_init", "init_std"}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_every_field_of_a_model_is_told_or_required(family):
    """A new field is one that no family has, until one says otherwise."""
    told = {name for name, _ in family.keys.values()} | family.allowed.keys() | {"attention_bias"}
    assert {field.name for field in dataclasses.fields(ModelConfig)} <= told | ELSEWHERE | FOLLOWING | OF_TRAINING


@pytest.mark.parametrize("family", FIELDS)
def test_a_config_goes_out_and_in_again(family, tmp_path):
    tokenizer = qwen2_tokenizer()
    for seed in range(30):
        config = random_config(family, seed)
        found = find_family(config, tokenizer)
        assert found.model_type == family
        written = json.loads(json.dumps(to_json(config, found)))
        _, again = from_json(written, tmp_path / "config.json")
        assert to_json(again, found) == written


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_what_a_config_leaves_out_is_the_default_of_the_class_in_transformers(family, tmp_path):
    sizes = {key: 32 if "heads" in key or "_head" in key else 256 for key in family.sizes}
    config = parse_config(sizes, family, tmp_path / "config.json")
    theirs = transformers.AutoConfig.for_model(family.model_type).to_dict()
    written = to_json(config, family)
    for key, (_, default) in family.options.items():
        if default is not None and theirs.get(key) is not None:
            assert written[key] == pytest.approx(theirs[key]), key
