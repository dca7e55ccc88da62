"""Attention patterns: which positions see which, where not all see all. Each is a description, and holds no tensor.

Positions are cut into blocks, of which a pattern says which meet at all; so a kernel can leave the others out. What a
pattern says of two positions does not depend on how many there are: cached and padded sequences are read alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import ParamSpec, Protocol

import torch
from torch import Tensor

from lm.config.model import ModelConfig

_LARGEST_BLOCK = 64
"""Positions of a window's blocks at most: larger ones gather less, and compute more that nobody sees."""


P = ParamSpec("P")


def remembered(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A function that keeps what it gave for the latest arguments; torch.compile sees one that keeps nothing."""
    kept = lru_cache(maxsize=64)(compute)

    @wraps(compute)
    def given(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return compute(*args, **kwargs)
        with torch.inference_mode(False):  # it outlives an evaluation, and training differentiates past it
            return kept(*args, **kwargs)  # type: ignore[arg-type]

    return given


class Pattern(Protocol):
    """Which keys each query sees, besides what makes it causal; it can be compared and hashed."""

    @property
    def block(self) -> int:
        """Positions of a block."""

    @property
    def whole(self) -> int:
        """The length up to which all see all."""

    @property
    def everywhere(self) -> int:
        """Blocks at the beginning whose queries see every key."""

    def most(self, *, is_causal: bool) -> int:
        """How many blocks any other sees at most."""

    def connected(self, n_blocks: int) -> Tensor:
        """(n_blocks, n_blocks) booleans: whether any query of a block sees any key of another."""

    def sees(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether the queries at some positions see the keys at others, all of them less than `within`; broadcast."""

    def earliest(self, query: int) -> int:
        """The first position that this query or a later one sees."""


@dataclass(frozen=True)
class Window:
    """Each position sees those that are at most `farthest` away.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    farthest: int
    everywhere: int = 0

    @property
    def block(self) -> int:
        """As long as the window reaches, in powers of two."""
        return min(_LARGEST_BLOCK, 1 << max(4, self.farthest.bit_length() - 1))

    @property
    def whole(self) -> int:
        """As far as the first position sees."""
        return self.farthest + 1

    def most(self, *, is_causal: bool) -> int:
        """Its own, and on either side as many as the window reaches into."""
        return 1 + (1 if is_causal else 2) * -(-self.farthest // self.block)

    def connected(self, n_blocks: int) -> Tensor:
        """Blocks whose nearest positions are near enough."""
        places = torch.arange(n_blocks)
        return ((places[:, None] - places).abs() - 1) * self.block < self.farthest

    def sees(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:  # noqa: ARG002 (it matters to others)
        """Whether they are near enough."""
        return (queries - keys).abs() <= self.farthest

    def earliest(self, query: int) -> int:
        """The far end of the window."""
        return max(0, query - self.farthest)


@dataclass(frozen=True)
class LocalBlocks:
    """Each position sees those of its own block.

    Source: Liu et al. 2018, section 4.2.2 (local attention).
    """

    block: int
    everywhere: int = 0

    @property
    def whole(self) -> int:
        """One block."""
        return self.block

    def most(self, *, is_causal: bool) -> int:  # noqa: ARG002
        """Its own."""
        return 1

    def connected(self, n_blocks: int) -> Tensor:
        """Each block with itself."""
        return torch.eye(n_blocks, dtype=torch.bool)

    def sees(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:  # noqa: ARG002
        """Whether they are of the same block."""
        return queries // self.block == keys // self.block

    def earliest(self, query: int) -> int:
        """Where its block begins."""
        return query // self.block * self.block


@dataclass(frozen=True)
class BigBird:
    """Each block sees itself and its neighbours, the first blocks (the global ones), and a few drawn at random.

    Global blocks see all, too, as far as the mask is not causal. The random blocks follow from layer and block alone:
    of a causal stack they come earlier; else as many come earlier as later, but for those beyond the end.

    Source: Zaheer et al. 2020, section 2 (of which this is the form without added tokens, ITC).
    """

    block: int
    global_blocks: int
    random_blocks: int
    layer: int
    is_causal: bool

    @property
    def whole(self) -> int:
        """The global blocks and two neighbours."""
        return (self.global_blocks + 2) * self.block

    @property
    def everywhere(self) -> int:
        """The global blocks, where a query may see what comes later."""
        return 0 if self.is_causal else self.global_blocks

    def most(self, *, is_causal: bool) -> int:
        """Itself and its neighbours, and what is global or random."""
        return (2 if is_causal else 3) + self.global_blocks + self.random_blocks

    def connected(self, n_blocks: int) -> Tensor:
        """Neighbours, global and random blocks."""
        return _bigbird(self, n_blocks)

    def sees(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether their blocks are connected."""
        return self.connected(-(-within // self.block)).to(queries.device)[queries // self.block, keys // self.block]

    def earliest(self, query: int) -> int:  # noqa: ARG002
        """The first global block."""
        return 0


@remembered
def _bigbird(pattern: BigBird, n_blocks: int) -> Tensor:
    """The blocks that BigBird connects; among those that could be random, the ones whose numbers are least are."""
    query, key = torch.arange(n_blocks)[:, None], torch.arange(2 * n_blocks)
    fixed = ((query - key).abs() <= 1) | (key < pattern.global_blocks)
    free = ~fixed & (key < (query if pattern.is_causal else 2 * (query + 1)))
    numbers = torch.where(free, _numbers(pattern.layer, query, key), 1 << 31)
    drawn = numbers.argsort(dim=1, stable=True)[:, : pattern.random_blocks]
    connected = fixed.scatter(1, drawn, True) & (fixed | free)
    return (connected | (query < pattern.everywhere))[:, :n_blocks]


def _numbers(layer: int, query: Tensor, key: Tensor) -> Tensor:
    """A number of 31 bits for each pair of blocks, as if drawn at random, and the same on every machine."""
    return _mixed(_mixed(_mixed(torch.full_like(query, layer)) + query) + key)


def _mixed(x: Tensor) -> Tensor:
    """Other 31 bits for each that an input has; no product leaves 64 bits. Source: Wellons 2018 (lowbias32)."""
    x = (x + 0x1E3779B9) & 0x7FFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0x7FFFFFFF
    x = ((x ^ (x >> 15)) * 0x046CA68B) & 0x7FFFFFFF
    return x ^ (x >> 16)


@remembered
def block_table(pattern: Pattern, n_blocks: int, *, is_causal: bool) -> Tensor:
    """Which blocks of keys each block of queries sees.

    Returns:
        (n_blocks, most) the numbers of the blocks in order, -1 after the last; `most` is the pattern's, or n_blocks.
        Of blocks that see every key only the first are named.
    """
    connected = pattern.connected(n_blocks)
    if is_causal:
        connected = connected.tril()
    most = pattern.most(is_causal=is_causal)
    ranked = torch.where(connected, torch.arange(n_blocks), n_blocks).sort(dim=1).values[:, :most]
    return torch.where(ranked == n_blocks, -1, ranked)


def pattern_pairs(pattern: Pattern, length: int, *, is_causal: bool) -> float:
    """How many pairs of a query and a key blocks see that are connected; of a block and itself half, where causal."""
    places = torch.arange(-(-length // pattern.block)) * pattern.block
    sizes = (length - places).clamp(max=pattern.block).double()
    connected = pattern.connected(len(sizes)).double()
    if is_causal:
        connected = connected.tril() - torch.eye(len(sizes)) / 2
    return float(sizes @ connected @ sizes)


def pattern_of(config: ModelConfig, layer: int, *, is_causal: bool) -> Pattern | None:
    """The pattern of a layer's self-attention, counted from 0 in its stack; None where all see all.

    Compressed attention alternates with local attention, which comes first.
    """
    if config.attention == "window":
        size = config.pattern("attention_window")
        return Window(size - 1 if is_causal else size)
    if config.attention == "bigbird":
        block, first, random = (config.pattern(name) for name in ("attention_block", "global_blocks", "random_blocks"))
        return BigBird(block, first, random, layer=layer, is_causal=is_causal)
    if config.attention == "compressed" and not config.compresses(layer):
        return LocalBlocks(config.pattern("attention_block"))
    return None
