import pytest

from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.model.lora import build_model_with_lora
from lm.model.transformer import init_empty_weights

SIZES = {"vocab_size": 11, "context_length": 8, "d_model": 16, "n_layers": 2}
KINDS = {
    "decoder": {"n_heads": 2, "positions": "learned", "bias": True, "tie_embeddings": False},
    "translation": {"n_heads": 2, "n_encoder_layers": 1, "positions": "relative", "activation": "swiglu"},
    "experts": {"n_heads": 2, "experts": 3, "value_residual": True},
    "masked": {"n_heads": 2, "objective": "masked", "labels": ("a", "b")},
    "recurrent": {"architecture": "lstm"},
}


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_shapes_are_those_of_the_model_without_memory(fields):
    config = ModelConfig(**SIZES, **fields)
    lora = LoraConfig(rank=2) if "n_heads" in fields and "experts" not in fields else LoraConfig()
    with init_empty_weights():
        empty = build_model_with_lora(config, lora)
    full = build_model_with_lora(config, lora)
    assert {name: value.shape for name, value in empty.state_dict().items()} == {
        name: value.shape for name, value in full.state_dict().items()
    }
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert not any(parameter.is_meta for parameter in full.parameters())
