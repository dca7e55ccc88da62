"""Evaluation during training: validation loss, translations, label accuracy and samples."""

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
from lm.data.training_data import LabelledPrompt, ReferenceTranslation
from lm.decoding.classifier import Classifier, CompletionClassifier
from lm.decoding.generator import Generator, encode_prompt
from lm.decoding.mask_filling import MaskFiller
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import LMError
from lm.evaluation.translation_scores import compute_bleu
from lm.hardware import time_work
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.model.variants.experts import count_expert_tokens, expert_fractions
from lm.text.records import parse_label
from lm.training.events import Evaluation, Sample, TrainingWarning
from lm.training.objective import summed_loss, summed_loss_and_correct
from lm.training.planning.budget import EvaluationCost
from lm.training.run import Run, divergence_error

_SAMPLE_TOKENS = 60
"""Length of continuations: a line or two of a terminal."""

_SHOWN_TRANSLATIONS = 2
"""Number of translations shown: always the first sentences of the split."""

_TIMED_TOKENS = 2048
"""Tokens per timed part of the split: large enough to be as fast per token as a whole batch."""

_TIMED_SENTENCES = 32
"""Number of timed translations: few, because an untrained model generates up to the length limit."""

_MAX_SCORED, _MIN_LABELLED, _CLASSIFICATION_BATCH = 8192, 200, 64
"""Maximum examples × labels scored per evaluation; minimum number of examples; batch size."""

_TIMED_LABELLED = 64
"""Number of timed classifications."""

_FRACTION_OF_LONGEST = 0.5
"""Time of a translation that ends by itself, as a fraction of one of maximum length."""


def evaluate(run: Run) -> Iterator[Evaluation | Sample | TrainingWarning]:
    """Evaluate the run, and record the best scores in `run.state`.

    Yields:
        The evaluation, if there is a validation split; the first translations of it; and samples. A sample that fails
            is a warning.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    with _evaluation_mode(run):
        if run.data.validation_bytes:
            evaluation, shown = _validate(run)
            yield evaluation
            yield from shown
        yield from _yield_samples(run)


@contextmanager
def _evaluation_mode(run: Run) -> Iterator[None]:
    """Within the context, the model is in eval mode with the weights that would be saved."""
    run.model.eval()
    try:
        with run.ema.swapped_in() if run.ema else nullcontext(), run.with_full_model():
            yield
    finally:
        run.model.train()


def _validate(run: Run) -> tuple[Evaluation, list[Sample]]:
    """Return the scores on the validation split, and translations to show."""
    start = time.perf_counter()
    with count_expert_tokens(run.model) as counts:
        nats, n_targets, correct = _validation_sums(run)
    if not math.isfinite(nats):
        raise divergence_error(run, f"the validation loss is {nats / n_targets}")
    loss, (bleu, translated) = nats / n_targets, _score_translations(run)
    accuracy = _label_accuracy(run) if correct is None else correct / n_targets
    bits_per_byte = nats / math.log(2) / run.data.validation_bytes if correct is None else None
    is_best, run.last_validation_loss = _update_best(run, loss, bleu), loss
    shown = [Sample(run.state.step, *pair, is_translation=True) for pair in translated[:_SHOWN_TRANSLATIONS]]
    seconds = time.perf_counter() - start
    use = expert_fractions({name: run.world.all_reduce(tokens) for name, tokens in counts.items()})
    return Evaluation(run.state.step, loss, bits_per_byte, n_targets, seconds, is_best, bleu, use, accuracy), shown


def compute_validation_loss(run: Run) -> tuple[float, int]:
    """Return summed nats and number of targets of the validation split."""
    nats, n_targets = 0.0, 0
    with torch.inference_mode():
        for batch in _local_batches(run):
            nats += float(summed_loss(run.model, batch, run.hardware))
            n_targets += batch.n_targets
    nats, number = run.world.all_reduce_sum(nats, n_targets)
    return nats, int(number)


def _local_batches(run: Run) -> Iterator[Batch]:
    """Yield this rank's rows of each validation batch."""
    for batch in run.data.validation():
        yield from (micro_batch.batch for micro_batch in run.world.micro_batches(batch) if micro_batch.is_real)


def _validation_sums(run: Run) -> tuple[float, int, int | None]:
    """Return the same as `compute_validation_loss`, and for masked models the number of correct predictions."""
    if not run.config.model.is_masked:
        return *compute_validation_loss(run), None
    nats, n_targets, correct = 0.0, 0, 0
    with torch.inference_mode():
        for batch in _local_batches(run):
            batch_sums, batch_correct = summed_loss_and_correct(run.model, batch, run.hardware)
            nats, correct, n_targets = (
                nats + float(batch_sums),
                correct + int(batch_correct),
                n_targets + batch.n_targets,
            )
    nats, number, guesses = run.world.all_reduce_sum(nats, n_targets, correct)
    return nats, int(number), int(guesses)


def _label_accuracy(run: Run) -> float | None:
    """Return the fraction of validation examples classified correctly; None without labels."""
    labelled = _labelled_prompts(run)
    if not labelled:
        return None
    guesses = run.world.parallel_map(labelled, partial(_classify_locally, run))
    return sum(guess == prompt.label for guess, prompt in zip(guesses, labelled, strict=True)) / len(labelled)


def _labelled_prompts(run: Run) -> list[LabelledPrompt]:
    """Return the validation examples to classify; fewer if there are many labels."""
    completions = run.config.label_completions
    if not completions:
        return []
    return run.data.labelled_prompts(
        [*map(parse_label, completions)], max(_MIN_LABELLED, _MAX_SCORED // len(completions))
    )


def _classify_locally(run: Run, labelled: Sequence[LabelledPrompt]) -> list[int]:
    """Return the index of the most probable label of each example."""
    assert isinstance(run.model, DecoderOnly)
    classifier = CompletionClassifier(run.model, run.tokenizer, run.config.label_completions, _CLASSIFICATION_BATCH)
    guesses: list[int] = classifier.probabilities([prompt.ids for prompt in labelled]).argmax(axis=1).tolist()
    return guesses


def measure_cost(run: Run, *, seconds: float) -> EvaluationCost:
    """Measure the cost of an evaluation, for about `seconds` seconds."""
    with _evaluation_mode(run):
        return EvaluationCost(
            _estimate_loss_seconds(run, seconds) + _estimate_label_seconds(run), _estimate_sentence_seconds(run)
        )


@torch.inference_mode()
def _estimate_loss_seconds(run: Run, limit: float) -> float:
    """Estimate the seconds for the loss on the whole split from as many rows as `limit` allows, after a warm-up."""
    timed_tokens, targets, elapsed, is_first = 0, 0, 0.0, True
    for batch in run.data.validation():
        targets += batch.n_targets
        for part in batch.split(max(1, _TIMED_TOKENS // batch.inputs.shape[1])) if elapsed <= limit else ():
            seconds = time_work(partial(summed_loss, run.model, part, run.hardware), run.hardware)
            if not is_first:
                elapsed, timed_tokens = elapsed + seconds, timed_tokens + part.n_targets
            is_first = False
            if elapsed > limit:
                break
    return elapsed * targets / max(1, timed_tokens)


def _estimate_label_seconds(run: Run) -> float:
    """Estimate the seconds to classify the validation split."""
    labelled = _labelled_prompts(run)
    if not labelled:
        return 0.0
    timed_ones = labelled[:_TIMED_LABELLED]
    return time_work(lambda: _classify_locally(run, timed_ones), run.hardware) * len(labelled) / len(timed_ones)


def _estimate_sentence_seconds(run: Run) -> float:
    """Estimate the seconds to translate a sentence once the model has learned to end one.

    An untrained model generates up to the length limit.
    """
    references = run.data.references(_TIMED_SENTENCES)
    if not references:
        return 0.0
    return _FRACTION_OF_LONGEST * time_work(lambda: _translate(run, references), run.hardware) / len(references)


def _score_translations(run: Run) -> tuple[float | None, list[tuple[str, str]]]:
    """Return BLEU of greedy translations of the validation split, and (source, translation) pairs.

    None and nothing for data without references.
    """
    references = run.data.references(run.config.training.bleu_sentences)
    if not references:
        return None, []
    translated = _translate(run, references)
    shown = [(reference.source, translation) for reference, translation in zip(references, translated, strict=True)]
    return compute_bleu(translated, [reference.target for reference in references]), shown


def _translate(run: Run, references: Sequence[ReferenceTranslation]) -> list[str]:
    """Translate greedily; the ranks divide the sentences."""
    return run.world.parallel_map(references, partial(_translate_locally, run))


def _translate_locally(run: Run, references: Sequence[ReferenceTranslation]) -> list[str]:
    """Translate greedily on this rank, each into the language of its tag."""
    model = _translation_model(run)
    sources = [reference._replace(target="") for reference in references]
    translations: dict[ReferenceTranslation, str] = {}
    for tag in dict.fromkeys(source.tag for source in sources):
        same_tag = [source for source in sources if source.tag == tag]
        translator = Translator([model], TranslationConfig(beam=1), to=None if tag is None else tag.language)
        heads = None if same_tag[0].heads is None else (source.heads or () for source in same_tag)
        lines = translator.translate((source.source for source in same_tag), dependency_heads=heads)
        translations |= {source: line.translations[0].text for source, line in zip(same_tag, lines, strict=True)}
    return [translations[source] for source in sources]


def _update_best(run: Run, loss: float, bleu: float | None) -> bool:
    """Return whether this evaluation is the best so far, and record it in the state.

    At equal BLEU the lower loss is better: BLEU is 0 for long at the start.
    """
    state = run.state
    is_best = state.best_loss is None or loss < state.best_loss
    if run.config.training.best_by == "bleu" and bleu is not None and state.best_bleu is not None:
        is_best = bleu > state.best_bleu or (bleu == state.best_bleu and is_best)
    if is_best:
        run.state = dataclasses.replace(state, best_loss=loss, best_bleu=bleu, best_step=state.step)
    return is_best


def _translation_model(run: Run) -> TranslationModel:
    assert not isinstance(run.model, EncoderOnly)
    learned = run.config.parallel
    return TranslationModel(
        run.model, run.tokenizer, run.source_tokenizer or run.tokenizer, learned.bidirectional, learned.max_length
    )


def check_samples(run: Run) -> None:
    """Check before the first step that the model can read the sample prompts.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: the model can't read a prompt for another reason.
    """
    for prompt in run.config.training.sample:
        try:
            _check_prompt(run, prompt)
        except LMError as error:
            raise type(error)(f"sample {prompt!r}: {error}") from None


def _check_prompt(run: Run, prompt: str) -> None:
    """Encode a prompt as a sample will, without using the weights."""
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


def _yield_samples(run: Run) -> Iterator[Sample | TrainingWarning]:
    """Yield the samples, or a warning for each that fails."""
    prompts, step = run.config.training.sample, run.state.step
    is_shared = run.config.model.translates and not isinstance(run.model, EncoderOnly)
    sample = partial(_sample_prompts, run)
    for prompt, text, problem in run.world.parallel_map(prompts, sample) if is_shared else sample(prompts):
        if problem is None:
            yield Sample(step, prompt, text, is_translation=is_shared or isinstance(run.model, EncoderOnly))
        else:
            yield TrainingWarning(step, f"no sample of {prompt!r}: {problem}")


def _sample_prompts(run: Run, prompts: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """Return (prompt, output, error) of each prompt."""
    samples: list[tuple[str, str, str | None]] = []
    for prompt in prompts:
        try:
            samples.append((prompt, _sample(run, prompt), None))
        except Exception as error:  # a failed sample must not stop training
            samples.append((prompt, "", str(error) or type(error).__name__))
    return samples


def _sample(run: Run, prompt: str) -> str:
    """Return the prompt with its blanks filled, its label, its translation, or a continuation."""
    if isinstance(run.model, EncoderOnly):
        if run.config.model.labels:
            (classified,) = Classifier(run.model, run.tokenizer).classify([prompt])
            return classified.label
        (filled,) = MaskFiller(run.model, run.tokenizer).fill([prompt])
        return filled.filled
    if run.config.model.translates:
        (translation,) = _translate_locally(run, [ReferenceTranslation(prompt, "", run.data.tag)])
        return translation
    assert isinstance(run.model, DecoderOnly)
    config = SamplingConfig(seed=run.config.training.seed, max_tokens=_SAMPLE_TOKENS, token_healing=False)
    (continuation,) = Generator(run.model, run.tokenizer, config).samples(prompt)
    return continuation.text
