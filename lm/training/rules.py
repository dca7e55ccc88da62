"""Rules of planning: model size, training time, regularisation and learning rate as functions of few measurements.

The constants come from docs/lab/recipe.md, unless stated otherwise. `BudgetClock` says when the learning rate decays,
and when a run with a time budget ends.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from lm.config.presets import build_depth_preset
from lm.config.run_config import TokenizerKind, TrainingConfig, parse_duration
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.training.optimizers import total_steps_from_decay

_TOKENS_PER_PARAMETER, _TOKENS_PER_PARAMETER_OF_PAIRS, _REFERENCE_FLOPS = (0.37, 0.25), (0.28, 0.35), 2.5e13
"""Sufficient tokens per block parameter at a compute budget in FLOPs: the best depths of runs of minutes; and the power
of compute with which they grow, those of text up to 10 for 470 M parameters (1.3e19 FLOPs)."""
_BATCH_TOKENS_FACTOR, _MIN_STEPS = 4, 200
"""Batch tokens per square root of training tokens, and the minimum number of steps, from the same runs."""
_MIN_BATCH_TOKENS = 512  # four windows of the context of shallow presets
_MAX_BATCH_TOKENS, _MAX_PAIR_BATCH_TOKENS = 2048, 1024  # per layer
_MIN_STEPS_PER_EPOCH = 12
"""Of text: on 20 kB, steps of a third of an epoch gave 3.58 bits/byte of unseen text, and of an eighth 3.49;
R-Drop made them smaller, and so did the runs from which the weight decay was chosen."""
_TOKENS_PER_VOCAB_ENTRY, _MIN_TOKENS = 192, 350_000
"""Of text, for more than two layers. For each entry: 3 layers that saw 87 on the King James Bible were 3% worse than 2
layers in equal time, 135 still 1%. In all: with 220,000 to 280,000 they were 1% to 5% worse."""
_SUFFICIENT_EPOCHS_PER_LAYER = 1.8
"""Of text: a deeper model was better where it saw 9 epochs in 4 layers, not where it saw 4 in 4 or 8 in 5 layers."""
_MAX_PARAMETERS_PER_TOKEN = 200
"""Block parameters for each token of a text: ten minutes on 20 kB gave 3.58 bits/byte of unseen text by 4 layers (260
parameters for each token) and 3.52 by 3 layers (110)."""
_TEXT_VOCAB_SIZES = (
    (30_000, 320), (200_000, 512), (600_000, 1024), (2_000_000, 2048), (6_000_000, 4096), (20_000_000, 8192),
    (math.inf, 16_384),
)  # fmt: skip
"""Bytes of a text below which a vocabulary is used: compared on unseen text of the same source, for 20 kB to 4 MB; the
smallest are 256 bytes and a few merges, the largest that of the preset base."""
_PAIR_VOCAB_SIZES = (100_000, 1000), (1_000_000, 4000), (50_000_000, 8000), (math.inf, 16_384)
"""The same of both sides of pairs: 4,000 and 8,000 were compared on four megabytes."""
_PARAMETERS_AT_DEPTH_1 = 64**2  # times 12 in an encoder block, 16 with cross-attention
_HELD_OUT_FRACTION = 0.1  # of a text of up to a megabyte
_BYTE_VOCAB_SIZE = 257  # bytes and the end-of-text token: approximate vocabulary without BPE
_MEGABYTE = 1e6
_USEFUL_TOKENS_PER_MB, _USEFUL_TARGET_TOKENS_PER_MB = 1.5e6, 4e6
"""Training tokens for a megabyte of text (five epochs) and of pairs (20 epochs of Multi30k), beyond which more time
brings little: two minutes and ten differ by one percent. They grow with the square root of the size."""
_CHINCHILLA_TOKENS_PER_PARAMETER = 20  # for a given model size: Hoffmann et al. 2022, as in `build_depth_preset`
_MAX_MEMBERS = 8
"""Of an ensemble, each of which takes its time for every token of an answer."""
_MEMBER_EPOCHS, _MIN_MEMBER_TOKENS, _MIN_MEMBER_DEPTH, _MEMBER_DEPTH_AT_A_MEGABYTE = 3.5, 400_000, 3, 4
"""What a member sees of a text, and its layers, at least. On 400 kB of prose four models of three layers were 3% better
than one of four, on a megabyte of Python two were 4% worse; on 3.9 MB two of four were 3% better than one of five.
"""
_DEFAULT_TIMES = (60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800)
"""Seconds among which a default time is chosen."""
_MAX_DEPTH = 24  # 680 M block parameters, far more than in any of the runs
_FLOPS_OVERHEAD = 1.1  # factor for attention (5% to 15% at depths 2 to 12) and the optimizer

_DROPOUT = (2.5, 20), (0.0, 0.2)  # epochs and dropout, interpolated linearly
_DROPOUT_OF_MEMBERS = 0.35
"""Of that of one model: on 20 kB members with 0.05 and 0.1 were 0.5% and 0.8% better than with 0.2, and on 400 kB in 40
minutes from 0.03 to 0.1 0.2% to 1% better than with 0.16."""
_FORGETTING = (1.5, 5, 10, 20), (0.0, 5.0, 8.0, 14.0)  # epochs, and how often weights are forgotten over a run
USEFUL_EPOCHS = 20
"""Epochs of prose beyond which a model only memorises it."""
_MIN_WEIGHT_DECAY, _MAX_WEIGHT_DECAY = 0.1, 4.0
_DROPOUT_OF_PAIRS = (12, 24), (0.1, 0.2)  # epochs and dropout; from 24 as in the preset translation
_BPE_DROPOUT, _BPE_DROPOUT_UNTIL = ((12, 24), (0.0, 0.1)), 0.8

_LOSS_GAPS, _FRACTIONS = (0.0, 3.0), (0.1, 0.7)
"""First loss on the new data minus the expected one, in nats per token, and the learning rate for it as a fraction of
the peak from random weights; interpolated linearly in its logarithm."""


MAX_CASED_VOCAB_SIZE = 4096
"""The largest vocabulary that gains from inline casing: larger ones have room for words in several cases."""


class ModelSize(NamedTuple):
    """Model size for a compute budget.

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


def choose_size(
    flops: float,
    *,
    text_bytes: int,
    kind: TokenizerKind = "bpe",
    depth: int | None = None,
    pairs: bool = False,
    decoder_only: bool = False,
) -> ModelSize:
    """Return the size of a language or translation model for a compute budget.

    The deepest model is chosen that sees a text often, or enough tokens per block parameter: of text 0.37 at 2.5e13
    FLOPs, as in runs of minutes on megabytes, growing with a power of compute to the 10 tokens of models with hundreds
    of millions of parameters trained by Muon. The vocabulary follows the size of the corpus.

    Args:
        text_bytes: size of the corpus; of both sides of pairs.
        kind: of the tokenizer; only a BPE vocabulary can be chosen.
        depth: of the model, of each side of pairs, if it is given.
        decoder_only: whether pairs are learned by a decoder-only model, with twice the layers.

    Source: 6 FLOPs per parameter and token, Kaplan et al. 2020; the 10 tokens, nanochat (Karpathy 2025).
    """
    vocab_size = _BYTE_VOCAB_SIZE
    if kind == "bpe":
        sizes = _PAIR_VOCAB_SIZES if pairs else _TEXT_VOCAB_SIZES
        vocab_size = next(size for limit, size in sizes if text_bytes < limit)
    at_depth_1 = _PARAMETERS_AT_DEPTH_1 * ((48 if decoder_only else 28) if pairs else 12)
    at_reference, exponent = _TOKENS_PER_PARAMETER_OF_PAIRS if pairs else _TOKENS_PER_PARAMETER
    enough = at_reference * (flops / _REFERENCE_FLOPS) ** exponent
    corpus_tokens = (1 - _HELD_OUT_FRACTION) * text_bytes / _estimate_bytes_per_token(vocab_size)

    def training_tokens(depth: int) -> float:
        return flops / (6 * _FLOPS_OVERHEAD * (at_depth_1 * depth**3 + vocab_size * 64 * depth))

    def is_suitable(depth: int) -> bool:
        parameters, tokens = at_depth_1 * depth**3, training_tokens(depth)
        if pairs:
            return tokens >= enough * parameters
        least = max(_MIN_TOKENS, _TOKENS_PER_VOCAB_ENTRY * vocab_size) if depth > 2 else 0
        sufficient = min(_SUFFICIENT_EPOCHS_PER_LAYER * depth * corpus_tokens, max(enough * parameters, least))
        return tokens >= sufficient and parameters <= _MAX_PARAMETERS_PER_TOKEN * corpus_tokens

    layers = depth or 1 + len([*takewhile(is_suitable, range(2, _MAX_DEPTH + 1))])
    tokens = training_tokens(layers)
    maximum = (_MAX_PAIR_BATCH_TOKENS if pairs else _MAX_BATCH_TOKENS) * layers
    batch = min(maximum, round(_BATCH_TOKENS_FACTOR * tokens**0.5), round(tokens / _MIN_STEPS))
    if not pairs:
        window = build_depth_preset(layers).values["model"]["context_length"]
        batch = min(batch, max(window, round(corpus_tokens / _MIN_STEPS_PER_EPOCH)))
    return ModelSize(layers, vocab_size, max(_MIN_BATCH_TOKENS, batch), tokens)


def choose_members(flops: float, *, text_bytes: int, **corpus: Any) -> int:
    """Return how many models learn a text best as an ensemble with a compute budget; 1 where one should have all of it.

    Each sees enough of the text, and is as deep as that has tokens for. Arguments are those of `choose_size`.
    """
    sizes = {n: choose_size(flops / n, text_bytes=text_bytes, **corpus) for n in range(1, _MAX_MEMBERS + 1)}
    corpus_tokens = (1 - _HELD_OUT_FRACTION) * text_bytes / _estimate_bytes_per_token(sizes[1].vocab_size)
    deep = _MEMBER_DEPTH_AT_A_MEGABYTE * (text_bytes / _MEGABYTE) ** (1 / 8)
    depth, enough = max(_MIN_MEMBER_DEPTH, int(deep)), max(_MEMBER_EPOCHS * corpus_tokens, _MIN_MEMBER_TOKENS)
    return max(1, len([*takewhile(lambda n: sizes[n].depth >= depth and sizes[n].tokens >= enough, sizes)]))


def _estimate_bytes_per_token(vocab_size: int) -> float:
    """Estimate the bytes per token of text: 1 without BPE, 1.5 with a vocabulary of 320, 3.5 with one of 8,192."""
    return 1.0 if vocab_size == _BYTE_VOCAB_SIZE else 1.5 + 0.43 * math.log2(vocab_size / 320)


def choose_default_seconds(
    flops_per_second: float, *, parameters: int | None = None, text_bytes: int, pairs: bool = False, **corpus: Any
) -> int:
    """Return the default training time for a text or for sentence pairs, between one minute and half an hour.

    Args:
        flops_per_second: FLOP/s of training on this machine, measured on a small model.
        parameters: of the model, if its size is given.
        text_bytes: see `choose_size`; so are others.
    """
    per_megabyte = _USEFUL_TARGET_TOKENS_PER_MB if pairs else _USEFUL_TOKENS_PER_MB
    useful = per_megabyte * (text_bytes / _MEGABYTE) ** 0.5

    def is_enough(seconds: float) -> bool:
        if parameters is not None:
            tokens = min(useful, _CHINCHILLA_TOKENS_PER_PARAMETER * parameters)
            return seconds * flops_per_second >= tokens * 6 * _FLOPS_OVERHEAD * parameters
        return choose_size(seconds * flops_per_second, text_bytes=text_bytes, pairs=pairs, **corpus).tokens >= useful

    # a deeper model sees fewer tokens: all longer times have to be enough too
    longest_first = reversed(_DEFAULT_TIMES[:-1])
    return min([*takewhile(is_enough, longest_first)], default=_DEFAULT_TIMES[-1])


def choose_text_regularisation(
    epochs: float, *, steps: float, learning_rate: float, members: int = 1
) -> Mapping[str, Mapping[str, float]]:
    """Choose the regularisation of a language model for a number of epochs, by section of RunConfig.

    Weights decay by weight_decay · learning_rate per step; over the run, the product with the number of steps says how
    often they are forgotten, which should grow with the epochs.

    Args:
        epochs: passes over the text, multiplied by its novelty.
        members: of an ensemble.

    Source: weight decay as forgetting, Wang & Aitchison 2024.
    """
    decay = float(np.interp(epochs, *_FORGETTING)) / (learning_rate or 1.0) * (1 / max(1.0, steps))
    weight_decay = round(min(max(_MIN_WEIGHT_DECAY, decay), _MAX_WEIGHT_DECAY), 2)
    return {"model": {"dropout": choose_dropout(epochs, members=members)}, "training": {"weight_decay": weight_decay}}


def choose_pair_regularisation(epochs: float, *, can_drop_merges: bool = True) -> Mapping[str, Mapping[str, float]]:
    """Choose regularisation of a translation model for a number of epochs, by section of RunConfig.

    Source: BPE dropout, Provilkov et al. 2020.
    """
    bpe_dropout = round(float(np.interp(epochs, *_BPE_DROPOUT)), 2) if can_drop_merges else 0.0
    return {
        "model": {"dropout": choose_dropout(epochs, pairs=True)},
        "parallel": {"bpe_dropout": bpe_dropout, "bpe_dropout_until": _BPE_DROPOUT_UNTIL},
    }


def choose_dropout(epochs: float, *, pairs: bool = False, members: int = 1) -> float:
    """Return the dropout for a number of epochs; `members` are those of an ensemble that learns text."""
    fraction = _DROPOUT_OF_MEMBERS if members > 1 and not pairs else 1.0
    return round(fraction * float(np.interp(epochs, *(_DROPOUT_OF_PAIRS if pairs else _DROPOUT))), 2)


def choose_rate_fraction(initial_loss: float | None, parent_loss: float | None, ngram_loss: float | None) -> float:
    """Return the learning rate of fine-tuning as a fraction of the peak from random weights.

    It grows with the first loss on the new data over the expected one: that of the parent on its own data, or of an
    n-gram model of the new data if that is lower.
    """
    if initial_loss is None or parent_loss is None:
        return _FRACTIONS[0]
    expected = parent_loss if ngram_loss is None else min(parent_loss, ngram_loss)
    return float(np.exp(np.interp(initial_loss - expected, _LOSS_GAPS, np.log(_FRACTIONS))))


UNLIMITED_STEPS = 1 << 40
_MAX_STARTUP = 0.75  # fraction of a budget
_STEP_WINDOW = 100  # with fewer, runs of two minutes ended 5% early (docs/lab/recipe.md)
_EXIT_OF_LONG, _EXIT_OF_SHORT = 4.0, 1.0  # seconds to end the process, after a long budget also to choose a dtype
_TOLERANCE, _TOLERANCE_SECONDS, _TOLERANCE_STEPS = 0.01, 0.5, 1.5
"""Fraction of the budget, seconds, steps: the end is moved if it misses the deadline by more."""
_MIN_TIMED_STEPS = 10  # after which the speed is known
_LONG_BUDGET, _RESERVE_OF_LONG, _RESERVE_OF_SHORT = 120.0, 0.1, 0.2
"""Seconds, and the fractions reserved for evaluations."""


class TrainingSpeed(NamedTuple):
    """Measured speed of a run on this machine.

    Attributes:
        loss_seconds: for the loss on the whole validation split.
        sentence_seconds: to translate one sentence in an evaluation; 0 without translation.
        hardware: the fastest hardware settings.
        evaluation_seconds: seconds to evaluate and save; known once the number of sentences to translate is.
    """

    step_seconds: float
    loss_seconds: float
    sentence_seconds: float
    hardware: Hardware
    evaluation_seconds: float = 0.0

    def scaled_to(self, processes: int) -> TrainingSpeed:
        """Return the speed of several processes, assuming linear scaling."""
        step, loss, sentence, hardware, _ = self
        return TrainingSpeed(step / processes, loss / processes, sentence / processes, hardware)


def evaluation_reserve(seconds_left: float) -> float:
    """Return the seconds reserved for evaluating and saving, of those left of a budget at the first step."""
    return max(0.0, seconds_left) * (_RESERVE_OF_LONG if seconds_left >= _LONG_BUDGET else _RESERVE_OF_SHORT)


def check_startup(budget: str | None, seconds: float) -> None:
    """Raise UsageError if start-up took so much of a budget that too little is left for training.

    Args:
        budget: None if there is none.
        seconds: since the start of the command.
    """
    if budget is not None and seconds > _MAX_STARTUP * parse_duration(budget):
        raise UsageError(f"{budget} is too short: start-up took {seconds:.1f} s of it")


class BudgetClock:
    """Remaining time of a run under a budget, with the measured duration of steps and evaluations.

    Everything between two steps counts: loading the batch, logging, rendering.

    Attributes:
        max_steps: limit of the number of steps, however much time is left.
        seconds: until the deadline, at the start.
    """

    def __init__(
        self,
        seconds_left: float,
        *,
        spent: float = 0.0,
        evaluation_seconds: float = 0.0,
        max_steps: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Start the clock.

        Args:
            seconds_left: seconds until the deadline.
            spent: seconds of the budget used before.
            evaluation_seconds: expected seconds to evaluate and save, until they have been measured.
            max_steps: see the attribute; None for no limit.
            clock: in seconds; the same for all ranks, so that they decide alike.
        """
        self._clock = clock or time.monotonic
        self.max_steps = UNLIMITED_STEPS if max_steps is None else max_steps
        self._last = self._clock()
        self.seconds, self._deadline = seconds_left, self._last + seconds_left
        self._budget, self._reserve = max(0.0, seconds_left) + spent, evaluation_reserve(seconds_left)
        self._steps: deque[float] = deque(maxlen=_STEP_WINDOW)
        self._evaluations: list[float] = []
        self._expected_evaluation = evaluation_seconds

    @property
    def seconds_left(self) -> float:
        return self._deadline - self._clock()

    def record_step(self, *, evaluated: bool, saved: bool) -> None:
        """Record the duration of a step, and of the evaluation and the checkpoint that followed it."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if not (evaluated or saved):
            self._steps.append(seconds)
        elif evaluated and self._steps:
            self._evaluations.append(max(0.0, seconds - statistics.median(self._steps)))

    def can_evaluate(self) -> bool:
        """Whether one more evaluation, and the last one, fit into the time reserved for evaluations."""
        return sum(self._evaluations) + 2 * self._evaluation_seconds <= self._reserve

    def total_if_due(self, step: int, *, config: TrainingConfig, since: int = 0) -> int | None:
        """Return the total number of steps if the decay must start after `step`, or None if there is still time.

        If the decay should have started earlier, for instance after a slow step, as many steps are left as fit.

        Args:
            since: step at which the run was extended.
        """
        steps = total_steps_from_decay(step, config=config, since=since)
        if steps < self.max_steps and self._seconds_to_end(step, steps, config) < self.seconds_left:
            return None
        return min(max(step + 1, steps), self.affordable_total(step, steps, config=config))

    def rescheduled_total(self, step: int, steps: int, *, config: TrainingConfig) -> int | None:
        """Return a new number of steps if a decay that ends at `steps` would miss the deadline by far, else None."""
        off = self._seconds_to_end(step, steps, config) - self.seconds_left
        tolerance = max(_TOLERANCE_SECONDS, _TOLERANCE * self._budget, _TOLERANCE_STEPS * self._step_seconds)
        if step >= steps or not self._steps or abs(off) <= tolerance:
            return None
        fitting = self.affordable_total(step, steps, config=config)
        return fitting if fitting != steps else None

    def affordable_total(self, step: int, steps: int, *, config: TrainingConfig) -> int:
        """Return the number of steps, at least `step` + 1, that fit into the time that is left."""
        seconds = self.seconds_left - self._overhead(step, steps, config)
        more = int(seconds / self._step_seconds) if self._step_seconds else 1
        return step + max(1, min(more, self.max_steps - step))

    @property
    def _step_seconds(self) -> float:
        return statistics.fmean(self._steps) if self._steps else 0.0

    @property
    def _evaluation_seconds(self) -> float:
        return statistics.fmean(self._evaluations) if self._evaluations else self._expected_evaluation

    def _seconds_to_end(self, step: int, steps: int, config: TrainingConfig) -> float:
        return (steps - step) * self._step_seconds + self._overhead(step, steps, config)

    def _overhead(self, step: int, steps: int, config: TrainingConfig) -> float:
        """Return seconds for the remaining evaluations that are affordable, and for the end of the run."""
        interval = config.evaluate_every
        pauses = 1 + ((steps - 1) // interval - step // interval if interval else 0)
        affordable = max(self._evaluation_seconds, self._reserve - sum(self._evaluations))
        end = _EXIT_OF_LONG if self._budget > _LONG_BUDGET / 2 else _EXIT_OF_SHORT
        return min(pauses * self._evaluation_seconds, affordable) + end
