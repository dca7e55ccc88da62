"""Model size, vocabulary and batch size for a time budget on this machine.

The constants come from the runs of equal time in docs/lab/recipe.md, unless stated otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from lm.config.presets import build_depth_preset
from lm.config.tokenizer import TokenizerKind

_TOKENS_PER_PARAMETER, _REFERENCE_FLOPS = 0.25, 2.5e13
"""Sufficient tokens per block parameter at a compute budget in FLOPs: the best depths of the runs of 200 and 500
seconds in docs/lab/recipe.md."""
_EXPONENT = 0.28
"""Tokens per parameter grow with this power of compute, up to 10 for 470 M parameters (1.3e19 FLOPs)."""
_BATCH_TOKENS_FACTOR, _MIN_STEPS = 4, 200
"""Batch tokens per square root of training tokens, and the minimum number of steps, from the same runs."""
_MIN_BATCH_TOKENS = 512  # four windows of the context of shallow presets
_MIN_STEPS_PER_EPOCH = 8
"""Of text: on 20 kB, steps of a third of an epoch gave 3.58 bits/byte of unseen text, and of an eighth 3.49."""
_TOKENS_PER_VOCAB_ENTRY = 192
"""Of text: 3 layers that saw 87 on the King James Bible were 3% worse than 2 layers in equal time, 135 still 1%."""
_MAX_PARAMETERS_PER_TOKEN = 200
"""Block parameters for each token of a text: ten minutes on 20 kB gave 3.58 bits/byte of unseen text by 4 layers (260
parameters for each token) and 3.52 by 3 layers (110)."""
_MAX_VOCAB_SIZE = 16_384  # of the preset base; for texts larger than those in the tables below
_HELD_OUT_FRACTION = 0.1  # of a text of up to a megabyte; the default of the setting `validation`
_BYTE_VOCAB_SIZE = 257  # bytes and the end-of-text token: approximate vocabulary without BPE
_USEFUL_TOKENS_PER_MB, _MEGABYTE = 1.5e6, 1e6
"""Training tokens for a megabyte of text, five epochs, beyond which more time brings little: two minutes and ten differ
by one percent (docs/lab/recipe.md). They grow with the square root of the size."""
_USEFUL_TARGET_TOKENS_PER_MB = 4e6
"""The same of pairs, per megabyte of both sides: 20 epochs of Multi30k."""
_CHINCHILLA_TOKENS_PER_PARAMETER = 20  # for a given model size: Hoffmann et al. 2022, as in `build_depth_preset`
_DEFAULT_TIMES = (60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800)
"""Seconds among which a default time is chosen."""
_MAX_DEPTH = 24  # 680 M block parameters, far more than in any of the runs
_FLOPS_OVERHEAD = 1.1  # factor for attention (5% to 15% at depths 2 to 12) and the optimizer


@dataclass(frozen=True)
class _SizingRules:
    """Constants for text or for pairs.

    Attributes:
        parameters_at_depth_1: block parameters at depth 1; they grow with depth³.
        batch_tokens: maximum tokens per step and layer.
        min_steps_per_epoch: which limits the batch of small corpora.
        tokens_per_vocab_entry: that models deeper than two layers must see, since the output layer takes most of their
            time with a large vocabulary.
        max_parameters_per_token: block parameters for each token of the corpus, against overfitting.
        vocab_sizes: (bytes of the corpus below which it is used, vocabulary size).
        sides: texts that are read for a learned token, 2 of pairs.
        short_corpus_bytes: below which a corpus that is seen often gets a smaller vocabulary, against memorised rare
            words.
        frequent_epochs: epochs from which it is seen often.
        frequent_vocab_size: that smaller vocabulary.
    """

    parameters_at_depth_1: int
    batch_tokens: int
    vocab_sizes: tuple[tuple[int, int], ...]
    sides: int = 1
    min_steps_per_epoch: int = 0
    tokens_per_vocab_entry: int = 0
    max_parameters_per_token: float = math.inf
    short_corpus_bytes: int = 0
    frequent_epochs: float = 0
    frequent_vocab_size: int = 0


_TEXT = _SizingRules(
    parameters_at_depth_1=12 * 64**2,
    batch_tokens=2048,
    # compared on unseen text of the same source, for 20 kB to 4 MB; the smallest are 256 bytes and a few merges
    vocab_sizes=(
        (30_000, 320),
        (100_000, 512),
        (600_000, 1024),
        (2_000_000, 2048),
        (3_000_000, 4096),
        (20_000_000, 8192),
    ),
    min_steps_per_epoch=_MIN_STEPS_PER_EPOCH,
    tokens_per_vocab_entry=_TOKENS_PER_VOCAB_ENTRY,
    max_parameters_per_token=_MAX_PARAMETERS_PER_TOKEN,
)
_PAIRS = _SizingRules(
    parameters_at_depth_1=28 * 64**2,  # 12 in the encoder, 16 in the decoder with cross-attention
    batch_tokens=1024,
    # 4,000 and 8,000 were compared on four megabytes
    vocab_sizes=((100_000, 1000), (1_000_000, 4000), (50_000_000, 8000)),
    sides=2,
    short_corpus_bytes=10_000_000,
    frequent_epochs=6.7,
    frequent_vocab_size=4000,
)

# 24 in each of two layers, for source and target tokens
_DECODER_ONLY_PAIRS = replace(_PAIRS, parameters_at_depth_1=48 * 64**2)


@dataclass(frozen=True)
class ModelSize:
    """Model size for a budget.

    Attributes:
        depth: of `lm.config.presets.build_depth_preset` or its counterpart for translation.
        vocab_size: of a trained tokenizer.
        batch_tokens: per optimizer step.
        tokens: estimated training tokens; for pairs, target tokens.
    """

    depth: int
    vocab_size: int
    batch_tokens: int
    tokens: float

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the RunConfig fields that differ from the preset of this depth, by section."""
        return {"tokenizer": {"vocab_size": self.vocab_size}, "training": {"batch_tokens": self.batch_tokens}}


def choose_size(
    seconds: float,
    *,
    flops_per_second: float,
    text_bytes: int,
    kind: TokenizerKind = "bpe",
    depth: int | None = None,
    pairs: bool = False,
    decoder_only: bool = False,
) -> ModelSize:
    """Return the size of a language or translation model for a time budget.

    The deepest model is chosen that sees enough tokens per block parameter: 0.25 at 2.5e13 FLOPs, as in runs of minutes
    on megabytes of text (docs/lab/recipe.md), growing with a power of compute to the 10 tokens of models with hundreds
    of millions of parameters trained by Muon. The vocabulary follows the size of the corpus.

    Args:
        flops_per_second: FLOP/s of training on this machine, measured on a small model.
        text_bytes: size of the corpus; of both sides of pairs.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.
        depth: of the model, of each side of pairs, if it is given.
        decoder_only: whether pairs are learned by a decoder-only model, with twice the layers.

    Source: 6 FLOPs per parameter and token, Kaplan et al. 2020; the 10 tokens, nanochat (Karpathy 2025).
    """
    rules = (_DECODER_ONLY_PAIRS if decoder_only else _PAIRS) if pairs else _TEXT
    vocab_size = next((size for limit, size in rules.vocab_sizes if text_bytes < limit), _MAX_VOCAB_SIZE)
    if kind != "bpe":
        vocab_size = _BYTE_VOCAB_SIZE
    flops = max(1.0, seconds) * flops_per_second
    largest = _size_for_flops(rules, vocab_size, flops, text_bytes, depth)
    seen_bytes = rules.sides * largest.tokens * _estimate_bytes_per_token(vocab_size)
    is_seen_often = seen_bytes > rules.frequent_epochs * text_bytes
    if text_bytes < rules.short_corpus_bytes and is_seen_often and vocab_size > rules.frequent_vocab_size:
        return _size_for_flops(rules, rules.frequent_vocab_size, flops, text_bytes, depth)
    return largest


def choose_default_seconds(
    *,
    flops_per_second: float,
    text_bytes: int,
    kind: TokenizerKind = "bpe",
    parameters: int | None = None,
    pairs: bool = False,
    decoder_only: bool = False,
) -> int:
    """Return the default training time for a text or for sentence pairs, between one minute and half an hour.

    Args:
        flops_per_second: FLOP/s of training on this machine, measured on a small model.
        text_bytes: size of the corpus; of both sides of pairs.
        parameters: of the model, if its size is given.
    """
    per_megabyte = _USEFUL_TARGET_TOKENS_PER_MB if pairs else _USEFUL_TOKENS_PER_MB
    useful = per_megabyte * (text_bytes / _MEGABYTE) ** 0.5
    size = partial(choose_size, flops_per_second=flops_per_second, text_bytes=text_bytes, kind=kind, pairs=pairs)

    def is_enough(seconds: float) -> bool:
        if parameters is not None:
            tokens = min(useful, _CHINCHILLA_TOKENS_PER_PARAMETER * parameters)
            return seconds * flops_per_second >= tokens * 6 * _FLOPS_OVERHEAD * parameters
        return size(seconds, decoder_only=decoder_only).tokens >= useful

    # a deeper model sees fewer tokens: all longer times have to be enough too
    longest_first = reversed(_DEFAULT_TIMES[:-1])
    return min([*takewhile(is_enough, longest_first)], default=_DEFAULT_TIMES[-1])


def _size_for_flops(
    rules: _SizingRules, vocab_size: int, flops: float, corpus_bytes: int, depth: int | None
) -> ModelSize:
    """Return the size for a compute budget: of a given depth, or the deepest that sees enough tokens."""
    corpus_tokens = (1 - _HELD_OUT_FRACTION) * corpus_bytes / _estimate_bytes_per_token(vocab_size)
    depth = _max_depth(rules, vocab_size, flops, corpus_tokens) if depth is None else depth
    tokens = _training_tokens(rules, vocab_size, flops, depth)
    maximum = rules.batch_tokens * depth
    batch = min(maximum, round(_BATCH_TOKENS_FACTOR * tokens**0.5), round(tokens / _MIN_STEPS))
    if rules.min_steps_per_epoch:
        window = build_depth_preset(depth).model["context_length"]
        batch = min(batch, max(window, round(corpus_tokens / rules.min_steps_per_epoch)))
    return ModelSize(depth, vocab_size, max(_MIN_BATCH_TOKENS, batch), tokens)


def _estimate_bytes_per_token(vocab_size: int) -> float:
    """Estimate the bytes per BPE token of text: 1.5 with a vocabulary of 320, 3.5 with one of 8,192."""
    return max(1.0, 1.5 + 0.43 * math.log2(vocab_size / 320))


def _max_depth(rules: _SizingRules, vocab_size: int, flops: float, corpus_tokens: float) -> int:
    """Return the depth of the deepest model that sees enough tokens and is not too large for the corpus."""
    max_parameters = rules.max_parameters_per_token * corpus_tokens
    enough = _TOKENS_PER_PARAMETER * (flops / _REFERENCE_FLOPS) ** _EXPONENT

    def is_suitable(depth: int) -> bool:
        parameters = rules.parameters_at_depth_1 * depth**3
        needed = enough * parameters
        if depth > 2:
            needed = max(needed, rules.tokens_per_vocab_entry * vocab_size)
        return _training_tokens(rules, vocab_size, flops, depth) >= needed and parameters <= max_parameters

    depth = 1
    while depth < _MAX_DEPTH and is_suitable(depth + 1):
        depth += 1
    return depth


def _training_tokens(rules: _SizingRules, vocab_size: int, flops: float, depth: int) -> float:
    """Return the training tokens of a model for a compute budget."""
    return flops / (6 * _FLOPS_OVERHEAD * _count_parameters(rules, vocab_size, depth))


def _count_parameters(rules: _SizingRules, vocab_size: int, depth: int) -> int:
    return rules.parameters_at_depth_1 * depth**3 + vocab_size * 64 * depth


def choose_held_out_fraction(text_bytes: int) -> float:
    """Return the fraction of a text to hold out: a tenth of up to one megabyte, less of a larger text.

    The held-out bytes grow with the square root of the size, so that evaluations stay a small part of the training
    time. The fraction depends on the text alone: every machine and every budget uses the same split.
    """
    return _HELD_OUT_FRACTION * min(1.0, (_MEGABYTE / max(1, text_bytes)) ** 0.5)
