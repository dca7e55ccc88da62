"""Compiled code steps the models that it knows; what it doesn't know, PyTorch computes."""

from dataclasses import replace

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, build_run_config
from lm.engine import selection
from lm.engine.selection import compiled_engine_supports, plan_engines
from lm.kernels import code_cache
from lm.model.transformer import EncoderOnly, build_model


def small(config: ModelConfig) -> ModelConfig:
    """The same settings with less of everything."""
    return replace(
        config, vocab_size=64, source_vocab_size=config.source_vocab_size and 64, context_length=32,
        d_model=8 * config.n_heads, d_ff=None, d_head=None, n_layers=max(2, config.expert_every),
        n_encoder_layers=min(1, config.n_encoder_layers),
    )  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_stepped_by_compiled_code_if_it_supports_it(preset, monkeypatch):
    """As many rows as it is fast for."""
    monkeypatch.setattr(code_cache, "is_complete", lambda: True)
    monkeypatch.setattr(selection, "get_compiled_engine", lambda _: "compiled")
    model = build_model(small(build_run_config(preset).model)).eval().requires_grad_(False)
    if isinstance(model, EncoderOnly):
        return  # it continues nothing
    plan, is_supported = plan_engines(model), compiled_engine_supports(model.config)
    for tokens in (1, 64, 65):
        is_compiled = is_supported and (tokens <= 64 or model.config.is_encoder_decoder)
        assert (plan.step_engine(tokens) == "compiled") == is_compiled


def test_a_setting_that_nobody_declared_is_left_to_pytorch(monkeypatch):
    assert compiled_engine_supports(ModelConfig())
    assert not compiled_engine_supports(ModelConfig(embedding_norm=True))
    monkeypatch.setattr(selection, "_COMPILED_ANY", frozenset())
    assert not compiled_engine_supports(ModelConfig())
