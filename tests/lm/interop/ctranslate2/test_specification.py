"""What CTranslate2 has no description for is refused by name."""

import pytest

from lm.config.model import ModelConfig
from lm.config.settings import list_settings
from lm.errors import UsageError
from lm.interop.ctranslate2.specification import _SUPPORTED, check_supported

ENCODER_DECODER = {"n_encoder_layers": 1, "norm": "layernorm", "positions": "sinusoidal"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"positions": "none"}, "positions 'none'"), ({"positions": "alibi"}, "positions 'alibi'"),
     ({"positions": "relative"}, "positions 'relative'"), ({"positions": "t5"}, "positions 't5'"),
     ({"activation": "relu2"}, "activation 'relu2'"),
     ({"qk_norm": True}, "qk_norm True"), ({"n_kv_heads": 2}, "n_kv_heads 2"), ({"softcap": 30.0}, "softcap 30.0"),
     ({"value_residual": True}, "value_residual True"), ({"embedding_shortcut": True}, "embedding_shortcut True"),
     ({"attention": "window"}, "attention 'window'"),
     ({"experts": 2}, "experts 2"), ({"syntax": "depth"}, "syntax 'depth'"), ({"d_head": 4}, "d_head 4"),
     ({"attention_bias": "inputs"}, "attention_bias"),
     ({"positions": "rotary", "rotary_fraction": 0.5}, "rotary_fraction 0.5"),
     ({"positions": "rotary", "rope_scaling": "linear"}, "rope_scaling 'linear'")],
)  # fmt: skip
def test_encoder_decoders_that_it_cannot_run(fields, named):
    with pytest.raises(UsageError, match=f"CTranslate2 runs no encoder-decoder with {named}"):
        check_supported(ModelConfig(**{**ENCODER_DECODER, **fields}))


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"positions": "none"}, "positions 'none'"), ({"positions": "alibi"}, "positions 'alibi'"),
     ({"activation": "relu2", "norm": "layernorm"}, "activation 'relu2'"), ({"softcap": 30.0}, "softcap 30.0"),
     ({"value_residual": True}, "value_residual True"), ({"embedding_shortcut": True}, "embedding_shortcut True"),
     ({"attention": "window"}, "attention 'window'"), ({"experts": 2}, "experts 2"),
     ({"rope_scaling": "llama3"}, "rope_scaling 'llama3'"), ({"rope_scaling": "yarn"}, "rope_scaling 'yarn'"),
     ({"parallel_residual": True}, "parallel_residual True"), ({"decoder_only": True}, "decoder_only True"),
     ({"objective": "masked"}, "objective 'masked'"), ({"architecture": "gru"}, "architecture 'gru'")],
)  # fmt: skip
def test_decoders_that_it_cannot_run(fields, named):
    with pytest.raises(UsageError, match=f"CTranslate2 runs no decoder with {named}"):
        check_supported(ModelConfig(**fields))


OF_WEIGHTS = {
    "context_length", "d_model", "n_layers", "n_encoder_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "rope_base",
    "rotary_fraction", "rope_scaling", "rope_factor", "norm", "norm_position", "norm_eps", "qk_norm", "bias",
    "attention_bias", "output_bias", "parallel_residual", "tie_embeddings", "scale_embeddings",
}  # fmt: skip
"""Fields that a description or its weights say."""
OF_OTHERS = {
    "recurrent_attention", "attention_window", "attention_block", "global_blocks", "random_blocks", "attention_rank",
    "attention_stride", "max_distance", "max_tree_distance", "rope_context", "rope_slow", "rope_fast",
    "rope_temperature", "experts_per_token", "expert_every", "expert_capacity", "gate_noise",
}  # fmt: skip
"""Fields of models that are refused for another."""
OF_TRAINING = {"dropout", "attention_dropout", "init_std", "zero_init"}


def test_no_field_of_a_model_is_forgotten():
    """A new field is said to CTranslate2, or a model that has it is refused."""
    fields = {described.name for described in list_settings("model", ModelConfig)}
    assert fields == set(_SUPPORTED) | OF_WEIGHTS | OF_OTHERS | OF_TRAINING
