"""Evaluation during training: validation loss, BLEU and samples."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from lm.config.inference import SamplingConfig, TranslationConfig
from lm.data import ReferenceTranslation
from lm.decoding.generator import Generator
from lm.decoding.translation import TranslationModel, Translator
from lm.evaluation.metrics import compute_bleu
from lm.hardware import time_work
from lm.model import DecoderOnly, EncoderOnly
from lm.training.objective import summed_loss, summed_loss_and_correct
from lm.training.run import Run
from lm.training.run_log import Evaluation, Sample

_SAMPLE_TOKENS = 60
"""Length of continuations: a line or two of a terminal."""
_SHOWN_TRANSLATIONS = 2
"""Number of translations shown: always the first sentences of the split."""
_TIMED_TOKENS = 2048
"""Tokens of the timed part of the split: large enough to be as fast per token as a whole batch."""
_TIMED_SENTENCES = 32
"""Number of timed translations: few, because an untrained model generates up to the length limit."""
_FRACTION_OF_LONGEST = 0.5
"""Time of a translation that ends by itself, as a fraction of one of maximum length."""


def evaluate(run: Run) -> Iterator[Evaluation | Sample]:
    """Evaluate the run, and record the best scores in `run.state`.

    Yields:
        The evaluation, if there is a validation split; the first translations of it; and samples.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    with run.evaluating():
        if run.data.validation_bytes:
            evaluation, shown = _validate(run)
            yield evaluation
            yield from shown
        if run.config.training.sample and not run.config.model.is_masked:
            yield from _sample_prompts(run, run.config.training.sample)


def _validate(run: Run) -> tuple[Evaluation, list[Sample]]:
    """Return the scores on the validation split, and translations to show."""
    start, step = time.perf_counter(), run.state.step
    nats, n_targets, correct = validation_sums(run)
    if not math.isfinite(nats):
        raise run.divergence(f"the validation loss is {nats / n_targets}")
    loss, bleu, shown = nats / n_targets, None, list[Sample]()
    if references := run.data.references(run.config.training.bleu_sentences):
        translated = run.world.parallel_map(references, partial(_translate, run))
        bleu = compute_bleu(translated, [reference.target for reference in references])
        first = zip(references[:_SHOWN_TRANSLATIONS], translated, strict=False)
        shown = [Sample(step, reference.source, text, is_translation=True) for reference, text in first]
    is_masked = run.config.model.is_masked
    bits_per_byte = None if is_masked else nats / math.log(2) / run.data.validation_bytes
    accuracy = correct / n_targets if is_masked else None
    state = run.state
    is_best = state.best_loss is None or loss < state.best_loss
    if run.config.training.best_by == "bleu" and bleu is not None and state.best_bleu is not None:
        # at equal BLEU the lower loss is better: BLEU is 0 for long at the start
        is_best = bleu > state.best_bleu or (bleu == state.best_bleu and is_best)
    if is_best:
        state = dataclasses.replace(
            state, best_step=step, best_loss=loss, best_bleu=bleu, best_bits_per_byte=bits_per_byte,
            best_accuracy=accuracy,
        )  # fmt: skip
    run.state, seconds = state, time.perf_counter() - start
    return Evaluation(step, loss, bits_per_byte, n_targets, seconds, is_best, bleu, accuracy), shown


@torch.inference_mode()
def validation_sums(run: Run) -> tuple[float, int, int]:
    """Return summed nats and targets of the validation split; for masked models also the correct predictions."""
    nats, n_targets, correct, is_masked = 0.0, 0, 0, run.config.model.is_masked
    for batch in run.data.validation():
        for part in (micro.batch for micro in run.world.micro_batches(batch) if micro.is_real):
            if is_masked:
                sums, right = summed_loss_and_correct(run.model, part, run.hardware)
                correct += int(right)
            else:
                sums = summed_loss(run.model, part, run.hardware)
            nats, n_targets = nats + float(sums), n_targets + part.n_targets
    nats, number, right_number = run.world.all_reduce_sum(nats, n_targets, correct)
    return nats, int(number), int(right_number)


def measure_cost(run: Run, *, seconds: float) -> tuple[float, float]:
    """Estimate the seconds for the loss of an evaluation, and for each sentence to translate; time a part of it.

    An untrained model translates up to the length limit, so that a translation takes a fraction of what is measured.
    """
    n_targets, loss_seconds, sentence_seconds = 0, 0.0, 0.0
    with run.evaluating(), torch.inference_mode():
        for number, batch in enumerate(run.data.validation()):
            if number == 0:
                part = next(batch.split(max(1, _TIMED_TOKENS // batch.inputs.shape[1])))
                work, timed = partial(summed_loss, run.model, part, run.hardware), list[float]()
                work()
                while sum(timed) <= seconds:
                    timed.append(time_work(work, run.hardware))
                loss_seconds = statistics.fmean(timed) / max(1, part.n_targets)
            n_targets += batch.n_targets
        if references := run.data.references(_TIMED_SENTENCES):
            taken = time_work(partial(_translate, run, references), run.hardware)
            sentence_seconds = _FRACTION_OF_LONGEST * taken / len(references)
    return loss_seconds * n_targets, sentence_seconds


def _translate(run: Run, references: Sequence[ReferenceTranslation]) -> list[str]:
    """Translate greedily on this rank, each into the language of its tag."""
    assert not isinstance(run.model, EncoderOnly)
    source = run.source_tokenizer or run.tokenizer
    model = TranslationModel(run.model, run.tokenizer, source, run.config.parallel.bidirectional)
    translations: dict[int, str] = {}
    for tag in {reference.tag for reference in references}:
        same_tag = [(number, each) for number, each in enumerate(references) if each.tag == tag]
        translator = Translator(model, TranslationConfig(beam=1), to=None if tag is None else tag.language)
        heads = None if same_tag[0][1].heads is None else (each.heads or () for _, each in same_tag)
        lines = translator.translate((each.source for _, each in same_tag), dependency_heads=heads)
        translations |= {number: line.translations[0].text for (number, _), line in zip(same_tag, lines, strict=True)}
    return [translations[number] for number in range(len(references))]


def _sample_prompts(run: Run, prompts: Sequence[str]) -> list[Sample]:
    """Continue prompts, or translate them."""
    step = run.state.step
    if run.config.model.translates:
        texts = _translate(run, [ReferenceTranslation(prompt, "", run.data.tag) for prompt in prompts])
        return [Sample(step, *pair, is_translation=True) for pair in zip(prompts, texts, strict=True)]
    assert isinstance(run.model, DecoderOnly)
    config = SamplingConfig(seed=run.config.training.seed, max_tokens=_SAMPLE_TOKENS, token_healing=False)
    generator = Generator(run.model, run.tokenizer, config)
    return [Sample(step, prompt, generator.samples(prompt)[0].text) for prompt in prompts]
