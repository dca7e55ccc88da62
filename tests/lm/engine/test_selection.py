"""Every engine declares what it supports of every field; what it doesn't, PyTorch computes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, configure
from lm.engine.selection import ANY, COMPILED, CUDA_GRAPH, unsupported

ENGINES = {"compiled": COMPILED, "cuda-graph": CUDA_GRAPH}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_field_of_a_model_is_declared(engine):
    assert ENGINES[engine].keys() == {field.name for field in fields(ModelConfig)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_field_without_a_declaration_is_not_supported(engine):
    for name in ENGINES[engine]:
        declared = {field: values for field, values in ENGINES[engine].items() if field != name}
        assert unsupported(ModelConfig(), dict.fromkeys(declared, ANY)) == f"{name}={getattr(ModelConfig(), name)}"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_that_engines_support(preset):
    """Those of blocks that attend to everything or to a window, and learn to predict what follows."""
    model = configure(preset).model
    is_plain = model.architecture == "transformer" and model.attention in {"full", "window"}
    is_causal = model.objective == "causal" and not model.experts
    reason = unsupported(model, COMPILED)
    is_known = model.positions != "relative" and not model.decoder_only
    assert (reason is None) == (is_plain and is_causal and is_known), reason
    assert (unsupported(model, CUDA_GRAPH) is None) == (is_plain and is_causal and not model.n_encoder_layers)
