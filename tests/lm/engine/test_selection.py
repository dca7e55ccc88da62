"""Compiled code steps the models that it knows; what it doesn't know, PyTorch computes."""

from dataclasses import replace

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, build_run_config
from lm.engine import selection
from lm.engine.selection import find_unsupported, plan_engines
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
def test_every_preset_has_an_engine_that_says_why(preset, monkeypatch):
    """Compiled code steps what it supports, as many rows as it is fast for."""
    monkeypatch.setattr(code_cache, "is_complete", lambda: True)
    monkeypatch.setattr(selection, "get_compiled_engine", lambda _: "compiled")
    model = build_model(small(build_run_config(preset).model)).eval().requires_grad_(False)
    if isinstance(model, EncoderOnly):
        return  # it continues nothing
    plan, setting = plan_engines(model), find_unsupported(model.config)
    for tokens in (1, 64, 65):
        is_compiled = setting is None and (tokens <= 64 or model.config.is_encoder_decoder)
        assert (plan.step_engine(tokens) == "compiled") == is_compiled
    if model.config.attention == "compressed":
        assert str(plan) == "float32, PyTorch (nothing is cached)"
    else:
        reason = "compiled engine (CPU, compiled code is installed)"
        assert str(plan) == f"float32, {reason if setting is None else f'PyTorch (no compiled code for {setting})'}"


def test_a_setting_that_nobody_declared_is_left_to_pytorch(monkeypatch):
    assert find_unsupported(ModelConfig()) is None
    assert find_unsupported(ModelConfig(embedding_norm=True)) == "embedding_norm=True"
    monkeypatch.setattr(selection, "_COMPILED_ANY", frozenset())
    assert find_unsupported(ModelConfig()) == "vocab_size=256"
