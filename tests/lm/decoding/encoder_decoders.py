"""Small encoder-decoders, and what they say when nothing is cached."""

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model import EncoderDecoder, Transformer, build_model

VOCABULARY, START, END = 40, 0, 1

SHAPES = {
    "learned": {"positions": "learned", "norm": "layernorm", "activation": "gelu", "bias": True},
    "rotary, grouped heads": {"positions": "rotary", "n_kv_heads": 1, "qk_norm": True},
    "sinusoidal, post-norm": {"positions": "sinusoidal", "norm_position": "post", "scale_embeddings": True},
    "relative, grouped heads": {"positions": "relative", "n_kv_heads": 2, "max_distance": 3},
    "biases by bucket": {"positions": "t5"},
    "linear biases": {"positions": "alibi"},
    "no positions": {"positions": "none", "n_kv_heads": 2},
    "window": {"attention": "window", "attention_window": 3, "value_residual": True},
    "bigbird": {"attention": "bigbird", "attention_block": 2, "global_blocks": 1, "random_blocks": 1},
    "values shared": {"value_residual": True, "softcap": 3.0},
    "key offset": {"key_offset": True},
}


def make_model(shape: str = "learned", *, seed: int = 1, **fields) -> EncoderDecoder:
    config = {
        "vocab_size": VOCABULARY, "context_length": 80, "d_model": 32, "n_layers": 2, "n_encoder_layers": 2,
        "n_heads": 4, "init_std": 0.2, **SHAPES[shape], **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(**config), seed=seed).eval().requires_grad_(False)
    assert isinstance(model, EncoderDecoder)
    return model


def random_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def uncached(model: Transformer, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
    """(rows, n, vocabulary): each row read at once, its source without padding, beside those with as long a source."""
    found, order = [], []
    with torch.no_grad():
        for length in lengths.unique():
            rows = (lengths == length).nonzero()[:, 0]
            order.append(rows)
            if isinstance(model, EncoderDecoder):
                found.append(model(source[rows, :length], tokens[rows]))
            else:
                found.append(model(torch.cat((source[rows, :length], tokens[rows]), dim=1))[:, length:])
    return torch.cat(found)[torch.cat(order).argsort()]


def forced(model: EncoderDecoder, source: list[int], tokens: list[int], start: int = START) -> list[float]:
    """The log-probability of each token of a translation, of one sentence read at once in float64."""
    with torch.no_grad():
        logits = model.double()(torch.tensor([source]), torch.tensor([[start, *tokens[:-1]]]))[0]
    model.float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1).tolist()
