"""A model that has learned to copy short lines: translations that can be told right from wrong."""

import functools
import random

import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.decoding.translation import TranslationModel
from lm.model import EncoderDecoder, build_model
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer

WORDS = ("owl", "fox", "mill", "saw", "ran", "sang")
_STEPS = 200


def lines(n: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 4))) for _ in range(n)]


@functools.cache
def copier() -> TranslationModel:
    """Trained for some seconds; the same each time."""
    tokenizer = make_tokenizer("bpe")
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=48, n_layers=1, n_encoder_layers=1, n_heads=4,
        positions="sinusoidal", norm="layernorm", activation="relu", bias=True, scale_embeddings=True,
    )  # fmt: skip
    model = build_model(config, seed=1)
    assert isinstance(model, EncoderDecoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1, step / 20, (_STEPS - step) / 100)
        loss = _loss(model, tokenizer, lines(48, seed=1000 + step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return TranslationModel(model.eval().requires_grad_(False), tokenizer, tokenizer)


def _loss(model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    rows = [[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.full((len(rows), int(lengths.max())), -100)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    source = padded.clamp(min=0)
    target = torch.cat((torch.full((len(rows), 1), tokenizer.start_of_text), source[:, :-1]), dim=1)
    return F.cross_entropy(model(source, target, lengths=lengths).flatten(0, 1), padded.flatten())
