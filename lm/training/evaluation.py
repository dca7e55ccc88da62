"""How good a run is so far: the loss on its validation split, translations of it, and what it makes of prompts."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.model import check_heads_given
from lm.data.batch import Batch
from lm.data.training_data import LabelledPrompt, Reference
from lm.decoding.classifier import Classifier, CompletionClassifier
from lm.decoding.generator import Generator, encode_prompt
from lm.decoding.mask_filling import MaskFiller
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import LMError
from lm.evaluation.translation_scores import compute_bleu
from lm.hardware import timed
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.model.variants.experts import count_expert_tokens, expert_fractions
from lm.text.examples import parse_label
from lm.training.budget import Cost
from lm.training.events import Evaluation, Sample, Warned
from lm.training.objective import summed_loss, summed_loss_and_correct
from lm.training.run import Run, diverged

_SAMPLE_TOKENS = 60
"""Of a continuation that is watched: a line or two of a terminal."""

_SHOWN_TRANSLATIONS = 2
"""Translations that are shown: always those of the first sentences of the split, so that progress is seen in them."""

_TIMED_TOKENS = 2048
"""Of each part of the split whose loss is timed: large enough to be as quick for a token as the whole batch is."""

_TIMED_SENTENCES = 32
"""Sentences whose translation is timed: few, since a model that has learned nothing makes each as long as it may."""

_SCORED, _FEWEST_LABELLED, _CLASSIFIED_AT_ONCE = 8192, 200, 64
"""Examples times labels whose probability an evaluation computes; the fewest examples, however many labels there are;
and how many are computed together."""

_TIMED_LABELLED = 64
"""Examples whose classification is timed."""

_SHARE_OF_LONGEST = 0.5
"""The time that a model takes for a translation once it knows when to end, as a share of that for the longest."""


def evaluate(run: Run) -> Iterator[Evaluation | Sample | Warned]:
    """Evaluate the run as it is; `run.state` knows the best from then on.

    Yields:
        The evaluation, if there is a validation split, and what the model makes of its sample prompts; for
        translation, also of the first sentences of the split. A sample that fails is a warning.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    with _evaluating(run):
        if run.data.validation_bytes:
            evaluation, shown = _validate(run)
            yield evaluation
            yield from shown
        yield from _samples(run)


@contextmanager
def _evaluating(run: Run) -> Iterator[None]:
    """While open, the model is in eval mode and has the weights that would be saved."""
    run.model.eval()
    try:
        with run.average.in_place() if run.average else nullcontext(), run.in_one_place():
            yield
    finally:
        run.model.train()


def _validate(run: Run) -> tuple[Evaluation, list[Sample]]:
    """The scores on the validation split, and the translations of it that are shown."""
    began = time.perf_counter()
    with count_expert_tokens(run.model) as counts:
        nats, predicted, correct = _validation_sums(run)
    if not math.isfinite(nats):
        raise diverged(run, f"the validation loss is {nats / predicted}")
    loss, (bleu, translated) = nats / predicted, _translations(run)
    accuracy = _label_accuracy(run) if correct is None else correct / predicted
    bits_per_byte = nats / math.log(2) / run.data.validation_bytes if correct is None else None
    is_best, run.last_loss = _note_best(run, loss, bleu), loss
    shown = [Sample(run.state.step, *pair, is_translation=True) for pair in translated[:_SHOWN_TRANSLATIONS]]
    seconds = time.perf_counter() - began
    use = expert_fractions({name: run.world.total(each) for name, each in counts.items()})
    return Evaluation(run.state.step, loss, bits_per_byte, predicted, seconds, is_best, bleu, use, accuracy), shown


def validation_loss(run: Run) -> tuple[float, int]:
    """Summed nats and number of targets of the whole validation split, with the model as it is."""
    nats, predicted = 0.0, 0
    with torch.inference_mode():
        for batch in _own(run):
            nats += float(summed_loss(run.model, batch, run.hardware))
            predicted += batch.predicted
    nats, number = run.world.summed(nats, predicted)
    return nats, int(number)


def _own(run: Run) -> Iterator[Batch]:
    """What of the validation split this process evaluates: its rows of each batch."""
    for batch in run.data.validation():
        yield from (turn.batch for turn in run.world.turns(batch) if turn.counts)


def _validation_sums(run: Run) -> tuple[float, int, int | None]:
    """As `validation_loss`, and of a masked model how many of the targets it guesses."""
    if not run.config.model.is_masked:
        return *validation_loss(run), None
    nats, predicted, correct = 0.0, 0, 0
    with torch.inference_mode():
        for batch in _own(run):
            of_batch, guessed = summed_loss_and_correct(run.model, batch, run.hardware)
            nats, correct, predicted = nats + float(of_batch), correct + int(guessed), predicted + batch.predicted
    nats, number, guesses = run.world.summed(nats, predicted, correct)
    return nats, int(number), int(guesses)


def _label_accuracy(run: Run) -> float | None:
    """The fraction of the validation split whose label is the likeliest of all; None where there are no labels."""
    labelled = _labelled(run)
    if not labelled:
        return None
    guesses = run.world.spread(labelled, partial(_classified_here, run))
    return sum(guess == each.label for guess, each in zip(guesses, labelled, strict=True)) / len(labelled)


def _labelled(run: Run) -> list[LabelledPrompt]:
    """Examples of the validation split that a decoder is to classify, fewer where there are more labels to score."""
    completions = run.config.label_completions
    if not completions:
        return []
    return run.data.labelled_prompts(
        [*map(parse_label, completions)], max(_FEWEST_LABELLED, _SCORED // len(completions))
    )


def _classified_here(run: Run, labelled: Sequence[LabelledPrompt]) -> list[int]:
    """The number of the likeliest label of each example, in order."""
    assert isinstance(run.model, DecoderOnly)
    classifier = CompletionClassifier(run.model, run.tokenizer, run.config.label_completions, _CLASSIFIED_AT_ONCE)
    guesses: list[int] = classifier.probabilities([each.ids for each in labelled]).argmax(axis=1).tolist()
    return guesses


def cost(run: Run, *, seconds: float) -> Cost:
    """Measure for about so many seconds what an evaluation of this run takes."""
    with _evaluating(run):
        return Cost(_seconds_for_loss(run, seconds) + _seconds_for_labels(run), _seconds_for_sentence(run))


@torch.inference_mode()
def _seconds_for_loss(run: Run, limit: float) -> float:
    """Seconds for the loss on the whole split, of which as many rows are timed as the limit allows.

    The first part doesn't count: kernels are chosen and memory is claimed in it.
    """
    looked_at, targets, taken, is_first = 0, 0, 0.0, True
    for batch in run.data.validation():
        targets += batch.predicted
        for part in batch.split(max(1, _TIMED_TOKENS // batch.inputs.shape[1])) if taken <= limit else ():
            seconds = timed(partial(summed_loss, run.model, part, run.hardware), run.hardware)
            if not is_first:
                taken, looked_at = taken + seconds, looked_at + part.predicted
            is_first = False
            if taken > limit:
                break
    return taken * targets / max(1, looked_at)


def _seconds_for_labels(run: Run) -> float:
    """Seconds for the labels of the validation split, if a decoder is to choose them."""
    labelled = _labelled(run)
    if not labelled:
        return 0.0
    timed_ones = labelled[:_TIMED_LABELLED]
    return timed(lambda: _classified_here(run, timed_ones), run.hardware) * len(labelled) / len(timed_ones)


def _seconds_for_sentence(run: Run) -> float:
    """Seconds for the translation of a sentence, once the model has learned to end one.

    A model that has learned nothing does not know when to end, and its translations are as long as they may be.
    """
    references = run.data.references(_TIMED_SENTENCES)
    if not references:
        return 0.0
    return _SHARE_OF_LONGEST * timed(lambda: _translate(run, references), run.hardware) / len(references)


def _translations(run: Run) -> tuple[float | None, list[tuple[str, str]]]:
    """BLEU of greedy translations of the validation split, and each of them after its source.

    None and nothing for data that has nothing to translate.
    """
    references = run.data.references(run.config.training.bleu_sentences)
    if not references:
        return None, []
    translated = _translate(run, references)
    shown = [(each.source, translation) for each, translation in zip(references, translated, strict=True)]
    return compute_bleu(translated, [each.target for each in references]), shown


def _translate(run: Run, references: Sequence[Reference]) -> list[str]:
    """Greedy translations of sources, in order; each process makes some of them."""
    return run.world.spread(references, partial(_translated_here, run))


def _translated_here(run: Run, references: Sequence[Reference]) -> list[str]:
    """Greedy translations of sources, in order, each into the language of its tag, where there are tags."""
    model = _translation_model(run)
    sources = [each._replace(target="") for each in references]
    found: dict[Reference, str] = {}
    for tag in dict.fromkeys(source.tag for source in sources):
        mine = [source for source in sources if source.tag == tag]
        translator = Translator([model], TranslationConfig(beam=1), to=None if tag is None else tag.language)
        heads = None if mine[0].heads is None else (source.heads or () for source in mine)
        lines = translator.translate((source.source for source in mine), heads=heads)
        found |= {source: line.translations[0].text for source, line in zip(mine, lines, strict=True)}
    return [found[source] for source in sources]


def _note_best(run: Run, loss: float, bleu: float | None) -> bool:
    """Whether no evaluation of the run was better so far; then its state has these scores as the best.

    Of equal BLEU the lower loss is better: a model that has learned little has a BLEU of 0 for long.
    """
    state = run.state
    is_best = state.best_loss is None or loss < state.best_loss
    if run.config.training.best_by == "bleu" and bleu is not None and state.best_bleu is not None:
        is_best = bleu > state.best_bleu or (bleu == state.best_bleu and is_best)
    if is_best:
        run.state = dataclasses.replace(state, best_loss=loss, best_bleu=bleu, best_step=state.step)
    return is_best


def _translation_model(run: Run) -> TranslationModel:
    """The model of a run as it translates."""
    assert not isinstance(run.model, EncoderOnly)
    learned = run.config.parallel
    return TranslationModel(
        run.model, run.tokenizer, run.source_tokenizer or run.tokenizer, learned.bidirectional, learned.max_length
    )


def check_samples(run: Run) -> None:
    """Check, before the first step, that the model can read the prompts of the setting `sample`.

    Raises:
        InputError: the tokenizer has no token for a character of one.
        UsageError: the model can't read one for another reason.
    """
    for prompt in run.config.training.sample:
        try:
            _read(run, prompt)
        except LMError as error:
            raise type(error)(f"sample {prompt!r}: {error}", settings=("sample",)) from None


def _read(run: Run, prompt: str) -> None:
    """Encode a prompt as a sample of it will, without the model's weights."""
    model = run.model
    if isinstance(model, EncoderOnly):
        if run.config.model.labels:
            run.tokenizer.encode(prompt)
        else:
            MaskFiller(model, run.tokenizer).encode(prompt)
    elif run.config.model.translates:
        check_heads_given(run.config.model, are_given=False)
        tag = run.data.tag
        translation = _translation_model(run)
        Translator([translation], TranslationConfig(beam=1), to=None if tag is None else tag.language)
        translation.encode([prompt.strip()], [None])
    else:
        encode_prompt(run.tokenizer, prompt)


def _samples(run: Run) -> Iterator[Sample | Warned]:
    """What the model makes of the prompts that are to be watched; a warning for each for which that fails."""
    prompts, step = run.config.training.sample, run.state.step
    is_shared = run.config.model.translates and not isinstance(run.model, EncoderOnly)
    sample = partial(_sampled, run)
    for prompt, text, problem in run.world.spread(prompts, sample) if is_shared else sample(prompts):
        if problem is None:
            yield Sample(step, prompt, text, is_translation=is_shared or isinstance(run.model, EncoderOnly))
        else:
            yield Warned(step, f"no sample of {prompt!r}: {problem}")


def _sampled(run: Run, prompts: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """For each prompt the prompt, what the model makes of it, and why it makes nothing of it, if it fails."""
    found: list[tuple[str, str, str | None]] = []
    for prompt in prompts:
        try:
            found.append((prompt, _sample(run, prompt), None))
        except Exception as error:  # whatever it is, training is worth more
            found.append((prompt, "", str(error) or type(error).__name__))
    return found


def _sample(run: Run, prompt: str) -> str:
    """What the model makes of a prompt."""
    if isinstance(run.model, EncoderOnly):
        return _filled(run, prompt)
    if run.config.model.translates:
        (translation,) = _translated_here(run, [Reference(prompt, "", run.data.tag)])
        return translation
    return _continue(run, prompt)


def _filled(run: Run, prompt: str) -> str:
    """A prompt with its blanks filled, or its label."""
    assert isinstance(run.model, EncoderOnly)
    if run.config.model.labels:
        (classified,) = Classifier(run.model, run.tokenizer).classify([prompt])
        return classified.label
    (filled,) = MaskFiller(run.model, run.tokenizer).fill([prompt])
    return filled.filled


def _continue(run: Run, prompt: str) -> str:
    """A continuation of a prompt, drawn the same way each time."""
    assert isinstance(run.model, DecoderOnly)
    config = SamplingConfig(seed=run.config.training.seed, max_tokens=_SAMPLE_TOKENS, token_healing=False)
    (sample,) = Generator(run.model, run.tokenizer, config).samples(prompt)
    return sample.text
