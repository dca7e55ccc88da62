"""Regularisation of models that see their data many times.

The constants come from the runs in docs/lab/recipe.md that saw a text many times, unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_DROPOUT = (2.5, 5), (0.0, 0.1)  # epochs and dropout, interpolated linearly
_FORGETTING = (2.5, 5, 7.5), (0.0, 7.0, 14.0)  # epochs, and how often weights are forgotten over a run
_MEMORISATION = 200  # epochs × parameters/token from which R-Drop is better
_USEFUL_EPOCHS = 14
"""Forward passes over prose beyond which a model only memorises it, two in an epoch with R-Drop."""
_R_DROP, _DROPOUT_WITH_R_DROP = 0.5, 0.2
_MIN_WEIGHT_DECAY = 0.1  # the default of --weight-decay
_MAX_WEIGHT_DECAY = 2.0
_DROPOUT_OF_PAIRS = (8, 12), (0.1, 0.2)  # epochs and dropout; from 12 as in the preset translation
_BPE_DROPOUT, _BPE_DROPOUT_UNTIL = ((8, 12), (0.0, 0.1)), 0.8
_MIN_WARMUP, _MAX_WARMUP = 10, 200  # steps: those of the presets tiny and translation


@dataclass(frozen=True)
class Regularisation:
    """Regularisation of a language model.

    Attributes:
        dropout: dropout rate of embeddings and sublayer outputs.
        r_drop: weight of the R-Drop divergence; 0 for one pass per batch.
        batch_fraction: of the batch size for one pass per batch, which grows with the square root of all tokens.
    """

    dropout: float
    weight_decay: float
    r_drop: float
    batch_fraction: float = 1.0

    @property
    def forward_passes(self) -> int:
        return 2 if self.r_drop else 1

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the RunConfig fields, by section."""
        training = {"weight_decay": self.weight_decay, "r_drop": self.r_drop}
        return {"model": {"dropout": self.dropout}, "training": training}


def choose_text_regularisation(
    epochs: float,
    *,
    parameters_per_token: float,
    steps: float,
    learning_rate: float,
    can_use_r_drop: bool = True,
    can_shrink_batch: bool = False,
) -> Regularisation:
    """Choose the regularisation of a language model for a number of epochs.

    Weights decay by weight_decay · learning_rate per step; over the run, the product with the number of steps says how
    often they are forgotten, which should grow with the epochs. If a large model would memorise the text all the same,
    each batch passes twice (R-Drop). In the same time the model then sees half of the tokens, in smaller batches.

    Args:
        epochs: passes over the text, multiplied by its `compute_novelty`.
        parameters_per_token: of the model, per token of the text.
        steps: of the optimizer, with one pass each.

    Source: weight decay as forgetting, Wang & Aitchison 2024; R-Drop, Liang et al. 2021; constants, docs/lab/recipe.md.
    """
    dropout, r_drop, batch_fraction = float(np.interp(epochs, *_DROPOUT)), 0.0, 1.0
    if can_use_r_drop and epochs * parameters_per_token >= _MEMORISATION:
        dropout, r_drop = _DROPOUT_WITH_R_DROP, _R_DROP
        batch_fraction = 0.5**0.5 if can_shrink_batch else 1.0
        steps = steps / 2 / batch_fraction
    weight_decay = scale_weight_decay(float(np.interp(epochs, *_FORGETTING)) / learning_rate, 1 / max(1.0, steps))
    return Regularisation(round(dropout, 2), weight_decay, r_drop, batch_fraction)


def scale_weight_decay(weight_decay: float, ratio: float) -> float:
    """Scale a weight decay by the ratio of planned to actual steps, within limits."""
    return round(min(max(_MIN_WEIGHT_DECAY, weight_decay * ratio), _MAX_WEIGHT_DECAY), 2)


def choose_pair_regularisation(
    epochs: float, *, steps: float, can_drop_merges: bool = True
) -> dict[str, dict[str, Any]]:
    """Choose regularisation and warm-up of a translation model for a number of epochs, by section of RunConfig.

    Source: BPE dropout, Provilkov et al. 2020; constants, docs/lab/recipe.md.
    """
    dropout = float(np.interp(epochs, *_DROPOUT_OF_PAIRS))
    bpe_dropout = float(np.interp(epochs, *_BPE_DROPOUT)) if can_drop_merges else 0.0
    warmup = min(max(_MIN_WARMUP, round(steps / 10)), _MAX_WARMUP)
    return {
        "model": {"dropout": round(dropout, 2)},
        "parallel": {"bpe_dropout": round(bpe_dropout, 2), "bpe_dropout_until": _BPE_DROPOUT_UNTIL},
        "training": {"warmup_steps": warmup},
    }


def compute_novelty(ngram_bits: Sequence[float]) -> float:
    """Return the ratio of the best n-gram bits/byte to that of bigrams: nearly 1 for prose.

    For text made of patterns it is about a third; such a text can be seen that much more often before it is memorised.

    Args:
        ngram_bits: bits/byte of n-gram baselines of order 1, 2, … (at least 2).
    """
    return min(ngram_bits[1:]) / ngram_bits[1]


def count_useful_epochs(novelty: float) -> float:
    """Return the number of forward passes over a text beyond which a model only memorises it."""
    return _USEFUL_EPOCHS / novelty


def choose_dropout(epochs: float, *, pairs: bool) -> float:
    """Return the dropout alone for a number of epochs."""
    return round(float(np.interp(epochs, *(_DROPOUT_OF_PAIRS if pairs else _DROPOUT))), 2)
