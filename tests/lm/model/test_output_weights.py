"""A model knows which weights predict something of final states: fine-tuning for labels leaves them out."""

import pytest

from lm.config.model import ModelConfig
from lm.model.transformer import build_model

SHAPE = {"vocab_size": 20, "d_model": 8, "n_layers": 1}
MODELS = {
    "tied": {},
    "untied": {"tie_embeddings": False, "output_bias": True},
    "masked": {"objective": "masked", "output_transform": True},
    "classifier": {"objective": "masked", "labels": ("a", "b")},
    "translation": {"n_encoder_layers": 1, "tie_embeddings": False, "source_vocab_size": 9},
    "recurrent": {"architecture": "lstm", "n_encoder_layers": 1, "tie_embeddings": False},
}


@pytest.mark.parametrize("fields", MODELS.values(), ids=list(MODELS))
def test_final_states_of_the_layers_depend_on_all_weights_but_those_of_the_head(fields):
    model = build_model(ModelConfig(**{**SHAPE, **fields}))
    head = model.select_output_weights(dict(model.named_parameters()))
    embedding = set(model.embedding.parameters())
    below = {*embedding, *model.decoder.parameters()}
    for part in ("encoder", "source_embedding"):
        below |= set(getattr(getattr(model, part, None), "parameters", set)())
    assert set(head.values()) == set(model.parameters()) - below
    assert bool(head) is (fields != {})


def test_output_weights_of_another_model_are_selected_too():
    masked, classifier = (build_model(ModelConfig(**{**SHAPE, **MODELS[name]})) for name in ("masked", "classifier"))
    names = set(masked.state_dict()) - set(classifier.state_dict())
    assert set(classifier.select_output_weights(masked.state_dict())) == names
