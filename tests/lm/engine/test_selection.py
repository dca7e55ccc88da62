"""Every engine declares what it supports of every field; what it doesn't, PyTorch computes."""

from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, build_run_config
from lm.engine import selection
from lm.engine.selection import (
    ANY_VALUE,
    COMPILED_SUPPORT,
    CUDA_GRAPH_SUPPORT,
    Operation,
    find_unsupported,
    plan_engines,
)
from lm.kernels import code_cache
from lm.model.transformer import EncoderOnly, build_model

ENGINES = {"compiled": COMPILED_SUPPORT, "cuda-graph": CUDA_GRAPH_SUPPORT}


OPERATIONS = get_args(Operation)


def small(config: ModelConfig) -> ModelConfig:
    """The same settings with less of everything."""
    return replace(
        config, vocab_size=64, source_vocab_size=config.source_vocab_size and 64, context_length=32,
        d_model=8 * config.n_heads, d_ff=None, d_head=None, n_layers=max(2, config.expert_every),
        n_encoder_layers=min(1, config.n_encoder_layers),
    )  # fmt: skip


@pytest.fixture
def with_compiled_code(monkeypatch):
    """As if everything had been compiled."""
    monkeypatch.setattr(code_cache, "is_complete", lambda: True)
    monkeypatch.setattr(selection, "get_compiled_engine", lambda _: SimpleNamespace(name="compiled"))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shares", [False, True])
def test_every_operation_of_every_preset_has_an_engine(preset, shares, with_compiled_code):
    """Compiled code steps what it supports, as many rows as it is fast for; the rest is PyTorch's, and it says why."""
    model = build_model(small(build_run_config(preset).model)).eval().requires_grad_(False)
    if isinstance(model, EncoderOnly):
        return  # it continues nothing
    plan, setting = plan_engines(model, shares_prefixes=shares), find_unsupported(model.config, COMPILED_SUPPORT)
    for operation in OPERATIONS:
        for tokens in (1, 64, 65):
            is_fast = tokens <= 64 or model.config.is_encoder_decoder
            is_compiled = setting is None and operation in {"step", "verify"} and is_fast
            assert plan.engine(operation, tokens).name == ("compiled" if is_compiled else "PyTorch")
    if model.config.attention == "compressed":
        assert str(plan) == "float32, PyTorch (nothing is cached)"
    else:
        reason = "compiled engine (CPU, compiled code is installed)"
        assert str(plan) == f"float32, {reason if setting is None else f'PyTorch (no compiled code for {setting})'}"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_field_without_a_declaration_must_be_off(engine):
    for name in ENGINES[engine]:
        default, value = getattr(ModelConfig, name), getattr(ModelConfig(), name)
        declared = dict.fromkeys(ENGINES[engine].keys() - {name}, ANY_VALUE)
        is_off = value in (False, 0, None, "none", ()) and value == default
        assert find_unsupported(ModelConfig(), declared) == (None if is_off else f"{name}={value}")
    assert find_unsupported(ModelConfig(embedding_norm=True), ENGINES["compiled"]) == "embedding_norm=True"
