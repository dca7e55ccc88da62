"""A small encoder-decoder that has learned to translate word by word, backwards: its alignments are known."""

import random
from pathlib import Path

import torch
import torch.nn.functional as F

from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, TokenizerConfig
from lm.model import build_model
from lm.run_folder import TrainingState
from lm.tokenizer import training

DICTIONARY = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "sun": "Sonne", "fox": "Fuchs", "狐": "여우",
}  # fmt: skip
LONGEST = 5
_STEPS = 400
SOURCE, TARGET = "one 狐 three fox", "Fuchs drei 여우 eins"


def pairs(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Sources of different words, and their targets: the words' translations, last one first."""
    draw = random.Random(seed)
    sources = [draw.sample(list(DICTIONARY), draw.randint(2, LONGEST)) for _ in range(count)]
    return [(" ".join(words), " ".join(DICTIONARY[word] for word in reversed(words))) for words in sources]


def make_translation_run(folder: Path) -> None:
    """A run whose model was trained on such pairs by a plain loop."""
    text = "\n".join(f"{source}\n{target}" for source, target in pairs(200, seed=0))
    config = TokenizerConfig(kind="bpe", vocab_size=400)
    tokenizer = training.train([text], config, corpus_bytes=len(text.encode()))
    shape = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=64, n_layers=1, n_encoder_layers=1, n_heads=1,
        positions="sinusoidal", scale_embeddings=True, norm="layernorm", norm_position="post",
    )  # fmt: skip
    model = build_model(shape, seed=1)
    end = tokenizer.end_of_text
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    for step in range(_STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min((step + 1) / 40, 1 - step / _STEPS)
        batch = pairs(32, seed=step + 1)
        source, lengths = padded([[*tokenizer.encode(source), end] for source, _ in batch], 0)
        inputs, _ = padded([[end, *tokenizer.encode(target)] for _, target in batch], 0)
        targets, _ = padded([[*tokenizer.encode(target), end] for _, target in batch], -100)
        loss = F.cross_entropy(model(source, inputs, lengths=lengths).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint(
        folder, config=RunConfig(model=shape), tokenizer=tokenizer, model=model.state_dict(),
        state=TrainingState(), is_best=True,
    )  # fmt: skip


def padded(rows: list[list[int]], filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids, filled up to the right, and how long they are."""
    longest = max(map(len, rows))
    lengths = torch.tensor([len(row) for row in rows])
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows]), lengths
