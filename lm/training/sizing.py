"""How large a model a time is enough for on this machine, and how it is kept from learning a text by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.config.tokenizer import TokenizerKind

_TOKENS_A_PARAMETER, _ARITHMETIC, _EXPONENT = 0.25, 2.5e13, 0.28
_FEWEST_STEPS = 200
_FEWEST_TOKENS_A_STEP = 512
_LARGEST_VOCABULARY = 16_384
_BYTES_A_TOKEN = 3.3
_HELD_OUT, _HELD_OUT_OF_SEEN, _LEAST_HELD_OUT = 0.1, 0.06, 20_000  # of the text, of what is learned from, bytes
_DROPOUT = (2.5, 5), (0.0, 0.1)  # at so many epochs, and on a line in between
_FORGETTINGS = (2.5, 5, 7.5), (0.0, 7.0, 14.0)
_BY_HEART = 200  # epochs, times parameters for each token of the text: from there on two passes of a batch are better
_R_DROP, _DROPOUT_OF_R_DROP = 0.5, 0.2
_LEAST_WEIGHT_DECAY, _MOST_WEIGHT_DECAY = 0.1, 2.0
_BYTES = 257  # and the token that ends a text: about the vocabulary where no BPE is trained
_DEEPEST = 24
_ATTENTION = 1.1  # arithmetic of attention and of the optimizer, beside that of the matrices
_DROPOUT_OF_PAIRS = (8, 12), (0.1, 0.2)  # at so many epochs, and on a line in between
_BPE_DROPOUT = (8, 12), (0.0, 0.1)
_SHORTEST_WARMUP, _LONGEST_WARMUP = 10, 200


@dataclass(frozen=True)
class _Kind:
    """What differs between texts and pairs, of which bytes count on both sides.

    Attributes:
        parameters_of_one: of the blocks of a model of depth 1; they grow with the cube of the depth.
        batch_tokens: of a step, for each layer, at most.
        vocabularies: each with the bytes below which it serves.
        bytes_a_token: of those that are learned.
        short: bytes below which a corpus that is seen often gets a smaller vocabulary: rare words are learned by heart.
        seen_often: epochs.
        vocabulary_seen_often: that it gets.
    """

    parameters_of_one: int
    batch_tokens: int
    vocabularies: tuple[tuple[int, int], ...]
    bytes_a_token: float
    short: int
    seen_often: int
    vocabulary_seen_often: int


_TEXT = _Kind(
    parameters_of_one=12 * 64**2,
    batch_tokens=2048,
    vocabularies=((30_000, 512), (100_000, 1024), (300_000, 2048), (800_000, 4096), (20_000_000, 8192)),
    bytes_a_token=_BYTES_A_TOKEN,
    short=3_000_000,
    seen_often=6,
    vocabulary_seen_often=4096,
)
_PAIRS = _Kind(
    parameters_of_one=28 * 64**2,  # 12 in the encoder, and 16 in the decoder, which reads from it
    batch_tokens=1024,
    vocabularies=((100_000, 1000), (1_000_000, 4000), (50_000_000, 8000)),
    bytes_a_token=2 * 4.2,
    short=10_000_000,
    seen_often=8,
    vocabulary_seen_often=4000,
)


@dataclass(frozen=True)
class Size:
    """What a budget is spent on.

    Attributes:
        depth: of `lm.config.presets.of_depth`, or of `translation_of_depth`.
        vocab_size: of the tokenizer, if one is trained.
        batch_tokens: in one optimizer step.
        tokens: that there is time for, about; of pairs, those of the targets.
    """

    depth: int
    vocab_size: int
    batch_tokens: int
    tokens: float

    def settings(self) -> dict[str, dict[str, Any]]:
        """What of it differs from the preset of its depth, by section of a RunConfig."""
        return {"tokenizer": {"vocab_size": self.vocab_size}, "training": {"batch_tokens": self.batch_tokens}}


@dataclass(frozen=True)
class HeldBack:
    """What keeps a model from learning a text by heart."""

    dropout: float
    weight_decay: float
    r_drop: float

    @property
    def passes(self) -> int:
        """Through the model, of each batch."""
        return 2 if self.r_drop else 1

    def settings(self) -> dict[str, dict[str, Any]]:
        """The fields of a RunConfig, by section."""
        training = {"weight_decay": self.weight_decay, "r_drop": self.r_drop}
        return {"model": {"dropout": self.dropout}, "training": training}


def fitting(seconds: float, *, rate: float, text_bytes: int, kind: TokenizerKind = "bpe") -> Size:
    """The size of a model that has seen enough tokens when the time is up.

    The deepest model is taken that sees enough tokens for each parameter of its blocks: a quarter of one in 2.5e13
    operations, as in runs of minutes on megabytes of text (docs/recipe.md), growing with a power of the operations that
    leads to the 10 tokens which serve models of hundreds of millions of parameters trained by Muon. The vocabulary
    follows the bytes of the text; of a short one that is seen often it is smaller.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the corpus.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.

    Source: 6 operations a parameter and token, Kaplan et al. 2020; the 10 tokens, nanochat (Karpathy 2025).
    """
    return _fitting(_TEXT, seconds, rate=rate, corpus_bytes=text_bytes, tokenizer=kind)


def _fitting(kind: _Kind, seconds: float, *, rate: float, corpus_bytes: int, tokenizer: TokenizerKind) -> Size:
    vocabulary = next((size for limit, size in kind.vocabularies if corpus_bytes < limit), _LARGEST_VOCABULARY)
    if tokenizer != "bpe":
        vocabulary = _BYTES
    operations = max(1.0, seconds) * rate
    found = _deepest(kind, vocabulary, operations)
    is_seen_often = found.tokens * kind.bytes_a_token > kind.seen_often * corpus_bytes
    if corpus_bytes < kind.short and is_seen_often and vocabulary > kind.vocabulary_seen_often:
        return _deepest(kind, kind.vocabulary_seen_often, operations)
    return found


def _deepest(kind: _Kind, vocabulary: int, operations: float) -> Size:
    """The deepest model with a vocabulary that sees enough tokens in so many operations."""
    depth, seen = _deepest_of(kind.parameters_of_one, vocabulary, operations)
    most = kind.batch_tokens * depth
    batch = max(_FEWEST_TOKENS_A_STEP, min(most, round(4 * seen**0.5), round(seen / _FEWEST_STEPS)))
    return Size(depth, vocabulary, batch, seen)


def _deepest_of(parameters_of_one: int, vocabulary: int, operations: float) -> tuple[int, float]:
    """The depth of such a model, of which one of depth 1 has so many parameters in its blocks, and the tokens."""
    enough = _TOKENS_A_PARAMETER * (operations / _ARITHMETIC) ** _EXPONENT

    def tokens(depth: int) -> float:
        parameters = parameters_of_one * depth**3 + vocabulary * 64 * depth
        return operations / (6 * _ATTENTION * parameters)

    depth = 1
    while depth < _DEEPEST and tokens(depth + 1) >= enough * parameters_of_one * (depth + 1) ** 3:
        depth += 1
    return depth, tokens(depth)


def held_out(tokens: float, *, text_bytes: int) -> float:
    """The share of a text to hold out where there is time to learn from so many tokens: usually a tenth.

    Of a large text it is less, or to evaluate a model would take as long as to train it: a token takes a third as long,
    and there are several evaluations. But never too little to tell one model from another.
    """
    return min(_HELD_OUT, max(_HELD_OUT_OF_SEEN * tokens * _BYTES_A_TOKEN, _LEAST_HELD_OUT) / max(1, text_bytes))


def fitting_pairs(seconds: float, *, rate: float, text_bytes: int, kind: TokenizerKind = "bpe") -> Size:
    """The size of a model that has seen enough pairs when the time is up.

    As for texts the deepest model is taken that sees enough tokens of targets for each parameter of its blocks, with
    as many tokens of sources beside them: the same numbers serve (docs/recipe.md). The vocabulary follows the bytes;
    for few pairs that are seen often it is smaller.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the pairs, both sides.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.

    Source: as `fitting`.
    """
    return _fitting(_PAIRS, seconds, rate=rate, corpus_bytes=text_bytes, tokenizer=kind)


def holding_back(
    epochs: float, *, parameters_a_token: float, steps: float, learning_rate: float, may_repeat: bool = True
) -> HeldBack:
    """How much a model is held back by dropout and weight decay when there is time to see a text so many times.

    What a weight learned fades by weight_decay · learning_rate a step, so that over all steps it is the product of the
    three that says how often it is forgotten; a text that is seen often wants that several times. Where a large model
    would see it so often that it knows it by heart all the same, each batch goes through twice instead (R-Drop), and
    half of the steps are left.

    Args:
        epochs: passes over the text; over one that repeats its patterns they count less, by its `novelty`.
        parameters_a_token: of the model, for each token of the text.
        steps: of the optimizer, each with one pass.
        learning_rate: at its highest.
        may_repeat: whether batches may go through twice.

    Source: weight decay as forgetting, Wang & Aitchison 2024; R-Drop, Liang et al. 2021; how much, docs/recipe.md.
    """
    dropout, r_drop = float(np.interp(epochs, *_DROPOUT)), 0.0
    if may_repeat and epochs * parameters_a_token >= _BY_HEART:
        dropout, r_drop, steps = _DROPOUT_OF_R_DROP, _R_DROP, steps / 2
    weight_decay = float(np.interp(epochs, *_FORGETTINGS)) / (learning_rate * max(1.0, steps))
    weight_decay = min(max(_LEAST_WEIGHT_DECAY, weight_decay), _MOST_WEIGHT_DECAY)
    return HeldBack(round(dropout, 2), round(weight_decay, 2), r_drop)


def holding_back_pairs(epochs: float, *, steps: float, may_drop_merges: bool = True) -> dict[str, dict[str, Any]]:
    """How an encoder-decoder is trained when there is time to see its pairs so many times, by section of a RunConfig.

    Args:
        epochs: passes over the pairs, their words always in the same pieces.
        steps: of the optimizer.
        may_drop_merges: whether the tokenizer has merges, which BPE dropout leaves out.

    Source: BPE dropout, Provilkov et al. 2020; how much, docs/recipe.md.
    """
    dropout = float(np.interp(epochs, *_DROPOUT_OF_PAIRS))
    bpe_dropout = float(np.interp(epochs, *_BPE_DROPOUT)) if may_drop_merges else 0.0
    warmup = min(max(_SHORTEST_WARMUP, round(steps / 10)), _LONGEST_WARMUP)
    return {
        "model": {"dropout": round(dropout, 2)},
        "parallel": {"bpe_dropout": round(bpe_dropout, 2), "bpe_dropout_until": 0.8},
        "training": {"warmup_steps": warmup},
    }


def novelty(counted: Sequence[float]) -> float:
    """The share of what one token leaves open about the next that several leave open too: nearly 1 in prose.

    In text made of patterns it is a third or so; such a text can be seen that much oftener before it is known by heart.

    Args:
        counted: bits that models of order 1, 2, … need (`lm.evaluation.ngrams`), of order 2 at least.
    """
    return min(counted[1:]) / counted[1]


def expected_bits(counted: Sequence[float]) -> float:
    """Bits a byte that a few minutes of training lead to, where models that count need so many (docs/recipe.md)."""
    return min(counted) * novelty(counted) ** 0.5
