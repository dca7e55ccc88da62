"""Masked models: Hugging Face's BERT is one of them; they see both sides, and padding changes nothing."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.model.cost import parameters_by_part
from lm.model.transformer import EncoderOnly, build_model
from tests.lm.model import hugging_face
from tests.tolerances import assert_close

SMALL = {"vocab_size": 31, "context_length": 12, "d_model": 16, "n_layers": 2, "n_heads": 2, "objective": "masked"}


def small(**fields) -> EncoderOnly:
    model = build_model(ModelConfig(**{**SMALL, "init_std": 0.3, **fields}), seed=1).eval()
    assert isinstance(model, EncoderOnly)
    return model


@pytest.mark.parametrize("lengths", [None, [11, 4, 7]])
def test_logits_are_those_of_hugging_faces_bert(lengths):
    theirs = hugging_face.bert()
    ours = hugging_face.from_bert(theirs)
    tokens = torch.randint(53, (3, 11), generator=torch.Generator().manual_seed(1))
    real = None if lengths is None else torch.tensor(lengths)
    seen = torch.ones_like(tokens) if real is None else (torch.arange(11) < real[:, None]).long()
    with torch.inference_mode():
        expected = theirs(tokens, attention_mask=seen).logits
        found = ours(tokens, lengths=real)
    assert_close(found[seen.bool()], expected[seen.bool()], model=ours)


def test_bert_base_has_the_published_parameters_but_for_its_head():
    """BERT base has 109,482,240 with the pooler, and no head for masked tokens."""
    pooler, types_of_tokens = 768 * 768 + 768, 2 * 768
    transform, bias = (768 * 768 + 768) + 2 * 768, 30522
    config = build_run_config("bert-base").model
    masked = sum(parameters_by_part(config).values())
    assert masked == 109_482_240 - pooler - types_of_tokens + transform + bias == 109_512_762
    labels = config.replace(labels=("no", "yes"))
    assert sum(parameters_by_part(labels).values()) == 109_482_240 - types_of_tokens + 2 * (768 + 1)


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "alibi", "t5", "relative", "none"])
@pytest.mark.parametrize("labels", [(), ("a", "b", "c")])
def test_padding_never_changes_a_logit(positions, labels):
    model = small(positions=positions, labels=labels)
    tokens = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([9, 4, 6])
    with torch.inference_mode():
        together = model(tokens, lengths=lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(tokens[row : row + 1, :length])
            assert_close(together[row, : alone.shape[1]], alone[0], model=model)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "window", "attention_window": 3},
        {"attention": "bigbird", "attention_block": 2, "global_blocks": 1, "random_blocks": 1},
        {"attention": "linformer", "attention_rank": 4},
        {"attention": "compressed", "attention_block": 4, "attention_stride": 2},
        {"experts": 4, "experts_per_token": 2},
    ],
)
def test_nor_does_it_with_other_attention_or_experts(fields):
    model = small(**fields)
    tokens = torch.randint(31, (3, 12), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([12, 5, 8])
    changed = torch.where(torch.arange(12) < lengths[:, None], tokens, (tokens + 1) % 31)
    with torch.inference_mode():
        found, other = (model(each, lengths=lengths) for each in (tokens, changed))
    for row, length in enumerate(lengths.tolist()):
        assert_close(found[row, :length], other[row, :length], model=model)


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
