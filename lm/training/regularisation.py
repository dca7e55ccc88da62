"""What keeps a model from memorising a text, or pairs, that there is time to see many times.

The numbers come from the runs in docs/recipe.md that saw a text many times, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_DROPOUT = (2.5, 5), (0.0, 0.1)  # at so many epochs, and on a line in between
_FORGETTINGS = (2.5, 5, 7.5), (0.0, 7.0, 14.0)  # how often the weights are forgotten over a run, at so many epochs
_BY_HEART = 200  # epochs, times parameters for each token of the text: from there on two passes of a batch are better
_R_DROP, _DROPOUT_OF_R_DROP = 0.5, 0.2
_LEAST_WEIGHT_DECAY = 0.1  # the default of --weight-decay
_MOST_WEIGHT_DECAY = 2.0
_DROPOUT_OF_PAIRS = (8, 12), (0.1, 0.2)  # at so many epochs, and on a line in between; from 12 as preset translation
_BPE_DROPOUT, _BPE_DROPOUT_UNTIL = ((8, 12), (0.0, 0.1)), 0.8
_SHORTEST_WARMUP, _LONGEST_WARMUP = 10, 200  # steps: those of the presets tiny and translation


@dataclass(frozen=True)
class Regularisation:
    """What keeps a model from memorising a text.

    Attributes:
        dropout: share of embeddings and sublayer outputs.
        weight_decay: of the optimizer.
        r_drop: weight of what two passes of a batch disagree by; 0 for one pass.
    """

    dropout: float
    weight_decay: float
    r_drop: float

    @property
    def passes(self) -> int:
        """How often each batch goes through the model."""
        return 2 if self.r_drop else 1

    def settings(self) -> dict[str, dict[str, Any]]:
        """The fields of a RunConfig, by section."""
        training = {"weight_decay": self.weight_decay, "r_drop": self.r_drop}
        return {"model": {"dropout": self.dropout}, "training": training}


def regularisation_of_text(
    epochs: float, *, parameters_a_token: float, steps: float, learning_rate: float, may_repeat: bool = True
) -> Regularisation:
    """What keeps a model from memorising a text when there is time to see it so many times.

    What a weight learned fades by weight_decay · learning_rate a step, so that over all steps it is the product of the
    three that says how often it is forgotten; a text that is seen often wants that several times. Where a large model
    would see it so often that it memorises it all the same, each batch goes through twice instead (R-Drop), and
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
    weight_decay = adapted_weight_decay(float(np.interp(epochs, *_FORGETTINGS)) / learning_rate, 1 / max(1.0, steps))
    return Regularisation(round(dropout, 2), weight_decay, r_drop)


def adapted_weight_decay(weight_decay: float, ratio: float) -> float:
    """Return the weight decay for a number of steps of which there were to be so many times as many."""
    return round(min(max(_LEAST_WEIGHT_DECAY, weight_decay * ratio), _MOST_WEIGHT_DECAY), 2)


def regularisation_of_pairs(epochs: float, *, steps: float, may_drop_merges: bool = True) -> dict[str, dict[str, Any]]:
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
        "parallel": {"bpe_dropout": round(bpe_dropout, 2), "bpe_dropout_until": _BPE_DROPOUT_UNTIL},
        "training": {"warmup_steps": warmup},
    }


def novelty(counted: Sequence[float]) -> float:
    """The share of what one token leaves open about the next that several leave open too: nearly 1 in prose.

    In text made of patterns it is a third or so; such a text can be seen that much oftener before it is memorised.

    Args:
        counted: bits that models of order 1, 2, … need (`lm.evaluation.ngram_baseline`), of order 2 at least.
    """
    return min(counted[1:]) / counted[1]


def expected_bits(counted: Sequence[float]) -> float:
    """Bits/byte that a few minutes of training lead to, where n-gram baselines need so many (docs/recipe.md)."""
    return min(counted) * novelty(counted) ** 0.5


def dropout_for(epochs: float, *, pairs: bool) -> float:
    """The dropout, alone, of a model that sees a text, or pairs, so many times."""
    return round(float(np.interp(epochs, *(_DROPOUT_OF_PAIRS if pairs else _DROPOUT))), 2)
