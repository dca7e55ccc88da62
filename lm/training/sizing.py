"""How large a model a time is enough for on this machine.

The numbers come from the runs of equal time in docs/recipe.md, unless they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lm.config.tokenizer import TokenizerKind

_TOKENS_A_PARAMETER, _ARITHMETIC = 0.25, 2.5e13
"""So many tokens for each parameter of the blocks are enough in so many operations: the best depths of the runs of 200
and 500 seconds in docs/recipe.md."""
_EXPONENT = 0.28
"""With more operations more tokens are wanted: with this power of them, 10 tokens for 470 M parameters (1.3e19)."""
_TOKENS_OF_A_STEP, _FEWEST_STEPS = 4, 200
"""Tokens of a step by the square root of all, and at most a 200th of them: the same runs."""
_FEWEST_TOKENS_A_STEP = 512  # four windows of the shallow presets' context
_LARGEST_VOCABULARY = 16_384  # as of the preset base, for texts of more bytes than any in the table below
_BYTES_A_TOKEN = 3.3  # of English in a vocabulary of some thousands, about; the stories, of few words, have 4.2
_HELD_OUT = 0.1  # of the text, the default of --validation
_HELD_OUT_OF_SEEN = 0.06  # ten evaluations, each token at a third of what training on it takes, are a fifth of it
_LEAST_HELD_OUT = 40_000  # bytes: about twelve thousand tokens, whose mean loss is known to about 0.02 nats
_BYTES = 257  # and the token that ends a text: about the vocabulary where no BPE is trained
_USEFUL_TOKENS, _USEFUL_BYTES = 1.5e6, 1e6
"""Tokens to train on a megabyte of text, five epochs, from which more time brings little: two minutes and ten differ by
one percent (docs/recipe.md). They grow with the square root of the bytes: short texts are seen oftener."""
_TOKENS_A_PARAMETER_OF_SIZE = 20  # of a model whose size is given: Hoffmann et al. 2022, as in `of_depth`
_TIMES = (60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800)
"""Seconds from which a default time is chosen."""
_DEEPEST = 24  # 680 M parameters in its blocks, far more than any of these numbers was tried on
_ATTENTION = 1.1  # arithmetic of attention (5% to 15% at depths 2 to 12) and of the optimizer, beside the matrices'


@dataclass(frozen=True)
class _Kind:
    """What differs between texts and pairs, of which bytes count on both sides.

    Attributes:
        parameters_of_one: of the blocks of a model of depth 1; they grow with the cube of the depth.
        batch_tokens: of a step, for each layer, at most.
        vocabularies: each with the bytes below which it serves.
        bytes_a_token: of those that are learned.
        short: bytes below which a corpus that is seen often gets a smaller vocabulary: rare words are memorised.
        seen_often: epochs from which it does.
        vocabulary_seen_often: its size then.
    """

    parameters_of_one: int
    batch_tokens: int
    vocabularies: tuple[tuple[int, int], ...]
    bytes_a_token: float
    short: int = 0
    seen_often: int = 0
    vocabulary_seen_often: int = 0


_TEXT = _Kind(
    parameters_of_one=12 * 64**2,
    batch_tokens=2048,
    # compared on unseen text of the same source, for 20 kB to 4 MB; the smallest are 256 bytes and a few merges
    vocabularies=(
        (30_000, 320),
        (100_000, 512),
        (600_000, 1024),
        (2_000_000, 2048),
        (3_000_000, 4096),
        (20_000_000, 8192),
    ),
    bytes_a_token=_BYTES_A_TOKEN,
)
_PAIRS = _Kind(
    parameters_of_one=28 * 64**2,  # 12 in the encoder, and 16 in the decoder, which reads from it
    batch_tokens=1024,
    # 4,000 and 8,000 were compared on four megabytes
    vocabularies=((100_000, 1000), (1_000_000, 4000), (50_000_000, 8000)),
    bytes_a_token=2 * 4.2,
    short=10_000_000,
    seen_often=8,
    vocabulary_seen_often=4000,
)

_ONE_STACK = replace(_PAIRS, parameters_of_one=48 * 64**2)  # 24 in two layers, which sources go through and targets


@dataclass(frozen=True)
class Size:
    """What a budget is spent on.

    Attributes:
        depth: of `lm.config.presets.build_depth_preset`, or of `translation_of_depth`, which in one stack has twice the
        layers. vocab_size: of the tokenizer, if one is trained. batch_tokens: in one optimizer step. tokens: that there
        is time for, about; of pairs, those of the targets.
    """

    depth: int
    vocab_size: int
    batch_tokens: int
    tokens: float

    def settings(self) -> dict[str, dict[str, Any]]:
        """What of it differs from the preset of its depth, by section of a RunConfig."""
        return {"tokenizer": {"vocab_size": self.vocab_size}, "training": {"batch_tokens": self.batch_tokens}}


def fitting(
    seconds: float, *, rate: float, text_bytes: int, kind: TokenizerKind = "bpe", depth: int | None = None
) -> Size:
    """The size of a model that has seen enough tokens when the time is up.

    The deepest model is taken that sees enough tokens for each parameter of its blocks: a quarter of one in 2.5e13
    operations, as in runs of minutes on megabytes of text (docs/recipe.md), growing with a power of the operations that
    leads to the 10 tokens which serve models of hundreds of millions of parameters trained by Muon. The vocabulary
    follows the bytes of the text.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the corpus.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.
        depth: of the model, where it is given.

    Source: 6 operations a parameter and token, Kaplan et al. 2020; the 10 tokens, nanochat (Karpathy 2025).
    """
    return _fitting(_TEXT, seconds, rate=rate, corpus_bytes=text_bytes, tokenizer=kind, depth=depth)


def default_seconds(*, rate: float, text_bytes: int, kind: TokenizerKind = "bpe", parameters: int | None = None) -> int:
    """Return the seconds to train on a text where nobody says how long: from one minute to half an hour.

    Args:
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: size of the corpus.
        kind: of the tokenizer.
        parameters: of the model, where its size is given.
    """
    useful = _USEFUL_TOKENS * (text_bytes / _USEFUL_BYTES) ** 0.5

    def is_enough(seconds: float) -> bool:
        if parameters is not None:
            wanted = min(useful, _TOKENS_A_PARAMETER_OF_SIZE * parameters)
            return seconds * rate >= wanted * 6 * _ATTENTION * parameters
        return fitting(seconds, rate=rate, text_bytes=text_bytes, kind=kind).tokens >= useful

    return next((seconds for seconds in _TIMES if is_enough(seconds)), _TIMES[-1])


def _fitting(
    kind: _Kind,
    seconds: float,
    *,
    rate: float,
    corpus_bytes: int,
    tokenizer: TokenizerKind,
    depth: int | None,
) -> Size:
    vocabulary = next((size for limit, size in kind.vocabularies if corpus_bytes < limit), _LARGEST_VOCABULARY)
    if tokenizer != "bpe":
        vocabulary = _BYTES
    operations = max(1.0, seconds) * rate
    found = _sized(kind, vocabulary, operations, depth)
    is_seen_often = found.tokens * kind.bytes_a_token > kind.seen_often * corpus_bytes
    if corpus_bytes < kind.short and is_seen_often and vocabulary > kind.vocabulary_seen_often:
        return _sized(kind, kind.vocabulary_seen_often, operations, depth)
    return found


def _sized(kind: _Kind, vocabulary: int, operations: float, depth: int | None) -> Size:
    """The model with a vocabulary for so many operations: of a depth, or the deepest that sees enough tokens."""
    depth = _deepest(kind, vocabulary, operations) if depth is None else depth
    seen = _tokens(kind, vocabulary, operations, depth)
    most = kind.batch_tokens * depth
    batch = max(_FEWEST_TOKENS_A_STEP, min(most, round(_TOKENS_OF_A_STEP * seen**0.5), round(seen / _FEWEST_STEPS)))
    return Size(depth, vocabulary, batch, seen)


def _deepest(kind: _Kind, vocabulary: int, operations: float) -> int:
    """The depth of the deepest model that sees enough tokens in so many operations."""
    enough = _TOKENS_A_PARAMETER * (operations / _ARITHMETIC) ** _EXPONENT
    depth = 1
    while depth < _DEEPEST and (
        _tokens(kind, vocabulary, operations, depth + 1) >= enough * kind.parameters_of_one * (depth + 1) ** 3
    ):
        depth += 1
    return depth


def _tokens(kind: _Kind, vocabulary: int, operations: float, depth: int) -> float:
    """The tokens that a model of a depth is trained on in so many operations."""
    return operations / (6 * _ATTENTION * _parameters(kind, vocabulary, depth))


def _parameters(kind: _Kind, vocabulary: int, depth: int) -> int:
    return kind.parameters_of_one * depth**3 + vocabulary * 64 * depth


def held_out(tokens: float, *, text_bytes: int) -> float:
    """The fraction of a text to hold out where there is time to learn from so many tokens: usually a tenth.

    Of a large text it is less, or to evaluate a model would take as long as to train it: a token takes a third as long,
    and there are several evaluations. But never too little to tell one model from another.
    """
    return min(_HELD_OUT, max(_HELD_OUT_OF_SEEN * tokens * _BYTES_A_TOKEN, _LEAST_HELD_OUT) / max(1, text_bytes))


def fitting_pairs(
    seconds: float,
    *,
    rate: float,
    text_bytes: int,
    kind: TokenizerKind = "bpe",
    depth: int | None = None,
    in_one_stack: bool = False,
) -> Size:
    """The size of a model that has seen enough pairs when the time is up.

    As for texts the deepest model is taken that sees enough tokens of targets for each parameter of its blocks, with
    as many tokens of sources beside them: the same numbers serve (docs/recipe.md). The vocabulary follows the bytes;
    for few pairs that are seen often it is smaller.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the pairs, both sides.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.
        depth: of each side, where it is given.
        in_one_stack: whether the model reads both sides in one stack, of twice the layers.

    Source: as `fitting`.
    """
    sides = _ONE_STACK if in_one_stack else _PAIRS
    return _fitting(sides, seconds, rate=rate, corpus_bytes=text_bytes, tokenizer=kind, depth=depth)
