"""Masked models: Hugging Face's BERT is one of them; they see both sides, and padding changes nothing."""

import pytest
import torch

from lm.config.model import ModelConfig
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


SHAPE = {"vocab_size": 20, "d_model": 8, "n_layers": 1}

MODELS = {
    "tied": {},
    "untied": {"tie_embeddings": False, "output_bias": True},
    "masked": {"objective": "masked", "output_transform": True},
    "classifier": {"objective": "masked", "labels": ("a", "b")},
    "translation": {"n_encoder_layers": 1, "tie_embeddings": False, "source_vocab_size": 9},
    "recurrent": {"architecture": "lstm", "n_encoder_layers": 1, "tie_embeddings": False},
}
