"""nanoGPT's recipe for CPUs in a loop of our own: tinyshakespeare by character.

The recipe, from nanoGPT's README: 4 layers, d_model 128, 4 heads, context 64, batches of 12 windows, 2,000 steps, no
dropout, float32; from its train.py: AdamW (0.9, 0.99) with a weight decay of 0.1 for matrices, gradient clipping at 1,
100 warm-up steps to 1e-3, cosine decay to 1e-4. It ends at about 1.88 nats/character.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.comparison import Workload

STEPS, LAYERS, WIDTH, HEADS, CONTEXT, ROWS = 2000, 4, 128, 4, 64, 12


def recipe(folder: Path, threads: int, *, corpus: str, parts: int, steps: int = STEPS) -> Workload:
    """Train by the recipe, a part of its steps each time; the seconds are multiplied by the number of parts."""
    torch.set_num_threads(threads)
    train, validation = read(Path(corpus))
    vocab_size = int(max(train.max(), validation.max())) + 1
    training = train_repeatedly(vocab_size, train, steps=steps)

    def run() -> float:
        began = time.perf_counter()
        *_, model = islice(training, steps // parts)
        seconds = parts * (time.perf_counter() - began)
        print(f"nanoGPT's recipe: validation loss {validation_loss(model, validation):.4f}", file=sys.stderr)
        return seconds

    return Workload(run)


def read(corpus: Path) -> tuple[Tensor, Tensor]:
    """Return the IDs of the characters of the first nine tenths of a text, and of the rest."""
    text = corpus.read_text(encoding="utf-8")
    ids = {character: index for index, character in enumerate(sorted(set(text)))}
    data = torch.tensor([ids[character] for character in text])
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def train_repeatedly(vocab_size: int, data: Tensor, *, steps: int) -> Iterator[GPT]:
    """Train one model after another; yield the model after each step."""
    for seed in count(1):
        torch.manual_seed(seed)
        yield from training_steps(GPT(vocab_size), data, steps=steps)


def training_steps(model: GPT, data: Tensor, *, steps: int = STEPS) -> Iterator[GPT]:
    """Train a model by the recipe; yield it after each step."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(len(data) - CONTEXT, (ROWS,))
        inputs = torch.stack([data[start : start + CONTEXT] for start in starts])
        targets = torch.stack([data[start + 1 : start + CONTEXT + 1] for start in starts])
        loss = model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # as nanoGPT does to log it
        yield model


def learning_rate(step: int, steps: int, *, peak: float = 1e-3, last: float = 1e-4, warm_up: int = 100) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine."""
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    progress = (step - warm_up) / max(1, steps - warm_up)
    return last + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - last)


@torch.no_grad()
def validation_loss(model: GPT, data: Tensor) -> float:
    """Return the mean loss over disjoint windows, in nats/character."""
    windows = (len(data) - 1) // CONTEXT
    inputs = data[: windows * CONTEXT].view(windows, CONTEXT)
    targets = data[1 : windows * CONTEXT + 1].view(windows, CONTEXT)
    losses = [model(rows, wanted) * len(rows) for rows, wanted in zip(inputs.split(64), targets.split(64), strict=True)]
    return float(sum(losses)) / windows


class GPT(nn.Module):
    """nanoGPT's model without biases: learned positions, pre-norm blocks, GELU, tied embeddings."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                is_residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if is_residual else 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """(batch, length) IDs and targets -> mean loss in nats."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).flatten(0, 1), targets.flatten())


class Block(nn.Module):
    """Self-attention and feed-forward network, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.input, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same shape."""
        queries, keys, values = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.input(self.attention_norm(x)).chunk(3, -1)
        )  # (batch, heads, length, head_dim)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))
