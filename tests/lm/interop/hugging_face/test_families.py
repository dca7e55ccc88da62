"""Families are told apart by the fields of a model."""

import json
from pathlib import Path

import pytest
import transformers

from lm.config.model import ModelConfig
from lm.interop.conversion import from_json, parse_config, to_json
from lm.interop.families import FAMILIES, differing_fields, find_family
from tests.lm.interop.hugging_face.models import FIELDS, qwen2_tokenizer, random_config

CHANGES = {
    "softcap": 30.0, "value_residual": True, "experts": 4, "attention": "bigbird",
    "positions": "none",
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_a_family_says_nothing_of_must_be_at_its_default(family, field):
    """Exporters fail closed."""
    config = parse_config({key: 32 if "head" in key else 256 for key in family.sizes}, family, Path("config.json"))
    assert differing_fields(config, family.fields) == {}
    changed = config.replace(**{field: CHANGES[field]})
    assert differing_fields(changed, family.fields).keys() == {field}


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


def test_only_a_classifier_becomes_one():
    """Like BERT's layers, but with what BERT has behind them missing."""
    shape = {"norm_position": "post", "embedding_norm": True, "positions": "learned", "objective": "masked"}
    shape |= {"norm": "layernorm", "activation": "gelu"}
    found = [find_family(ModelConfig(**shape, labels=labels), qwen2_tokenizer()) for labels in ((), ("a", "b"))]
    assert [family.architecture for family in found] == ["LMForMaskedLM", "BertForSequenceClassification"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_what_a_config_leaves_out_is_the_default_of_the_class_in_transformers(family, tmp_path):
    sizes = {key: 32 if "heads" in key or "_head" in key else 256 for key in family.sizes}
    config = parse_config(sizes, family, tmp_path / "config.json")
    theirs = transformers.AutoConfig.for_model(family.model_type).to_dict()
    written = to_json(config, family)
    for key, (_, default) in family.options.items():
        if default is not None and theirs.get(key) is not None:
            assert written[key] == pytest.approx(theirs[key]), key
