"""Evaluation during training: validation loss, translations, label accuracy and samples."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.data.batch import LabelledPrompt, ReferenceTranslation
from lm.decoding.classifier import Classifier, fill_masks
from lm.decoding.generator import Generator
from lm.decoding.translation import TranslationModel, Translator
from lm.evaluation.metrics import compute_bleu
from lm.hardware import time_work
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.model.variants.experts import count_expert_tokens
from lm.text.records import parse_label
from lm.training.events import Evaluation, Sample, TrainingWarning
from lm.training.objective import summed_loss, summed_loss_and_correct
from lm.training.run import Run

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
    with run.evaluating():
        if run.data.validation_bytes:
            evaluation, shown = _validate(run)
            yield evaluation
            yield from shown
        prompts, sample = run.config.training.sample, partial(_sample_prompts, run)
        yield from run.world.parallel_map(prompts, sample) if run.config.model.translates else sample(prompts)


def _validate(run: Run) -> tuple[Evaluation, list[Sample]]:
    """Return the scores on the validation split, and translations to show."""
    start = time.perf_counter()
    with count_expert_tokens(run.model) as counts:
        nats, n_targets, correct = validation_sums(run)
    if not math.isfinite(nats):
        raise run.divergence(f"the validation loss is {nats / n_targets}")
    loss, (bleu, translated) = nats / n_targets, _score_translations(run)
    accuracy = _label_accuracy(run) if correct is None else correct / n_targets
    bits_per_byte = nats / math.log(2) / run.data.validation_bytes if correct is None else None
    is_best, run.last_validation_loss = _update_best(run, loss, bleu), loss
    shown = [Sample(run.state.step, *pair, is_translation=True) for pair in translated[:_SHOWN_TRANSLATIONS]]
    seconds = time.perf_counter() - start
    totals = {name: run.world.all_reduce(tokens) for name, tokens in counts.items()}
    use = {name: (tokens / tokens.sum()).tolist() for name, tokens in totals.items()}
    return Evaluation(run.state.step, loss, bits_per_byte, n_targets, seconds, is_best, bleu, use, accuracy), shown


@torch.inference_mode()
def validation_sums(run: Run) -> tuple[float, int, int | None]:
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
    nats, number, guesses = run.world.all_reduce_sum(nats, n_targets, correct)
    return nats, int(number), int(guesses) if is_masked else None


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
    classifier = Classifier(run.model, run.tokenizer, run.config.label_completions, _CLASSIFICATION_BATCH)
    guesses: list[int] = classifier.probabilities([prompt.ids for prompt in labelled]).argmax(1).tolist()
    return guesses


def measure_cost(run: Run, *, seconds: float) -> tuple[float, float]:
    """Estimate the seconds for the loss of an evaluation, and for each sentence to translate, from a part of it.

    The loss is timed for about `seconds`. An untrained model translates up to the length limit, so that a translation
    takes a fraction of what is measured.
    """
    elapsed, timed_tokens, n_targets, sentence_seconds, is_warm = 0.0, 0, 0, 0.0, False
    with run.evaluating(), torch.inference_mode():
        for batch in run.data.validation():
            n_targets += batch.n_targets
            for part in batch.split(max(1, _TIMED_TOKENS // batch.inputs.shape[1])) if elapsed <= seconds else ():
                taken = time_work(partial(summed_loss, run.model, part, run.hardware), run.hardware)
                if is_warm:
                    elapsed, timed_tokens = elapsed + taken, timed_tokens + part.n_targets
                is_warm = True
                if elapsed > seconds:
                    break
        loss_seconds = elapsed * n_targets / max(1, timed_tokens)
        if labelled := _labelled_prompts(run):
            some = labelled[:_TIMED_LABELLED]
            loss_seconds += time_work(lambda: _classify_locally(run, some), run.hardware) * len(labelled) / len(some)
        if references := run.data.references(_TIMED_SENTENCES):
            taken = time_work(lambda: _translate_locally(run, references), run.hardware)
            sentence_seconds = _FRACTION_OF_LONGEST * taken / len(references)
    return loss_seconds, sentence_seconds


def _score_translations(run: Run) -> tuple[float | None, list[tuple[str, str]]]:
    """Return BLEU of greedy translations of the validation split, and (source, translation) pairs.

    None and nothing for data without references.
    """
    references = run.data.references(run.config.training.bleu_sentences)
    if not references:
        return None, []
    translated = run.world.parallel_map(references, partial(_translate_locally, run))
    shown = [(reference.source, translation) for reference, translation in zip(references, translated, strict=True)]
    return compute_bleu(translated, [reference.target for reference in references]), shown


def _translate_locally(run: Run, references: Sequence[ReferenceTranslation]) -> list[str]:
    """Translate greedily on this rank, each into the language of its tag."""
    assert not isinstance(run.model, EncoderOnly)
    learned, source = run.config.parallel, run.source_tokenizer or run.tokenizer
    model = TranslationModel(run.model, run.tokenizer, source, learned.bidirectional, learned.max_length)
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


def _sample_prompts(run: Run, prompts: Sequence[str]) -> list[Sample | TrainingWarning]:
    samples: list[Sample | TrainingWarning] = []
    shows_result = run.config.model.translates or isinstance(run.model, EncoderOnly)
    for prompt in prompts:
        try:
            samples.append(Sample(run.state.step, prompt, _sample(run, prompt), is_translation=shows_result))
        except Exception as error:  # a failed sample must not stop training
            problem = f"no sample of {prompt!r}: {str(error) or type(error).__name__}"
            samples.append(TrainingWarning(run.state.step, problem))
    return samples


def _sample(run: Run, prompt: str) -> str:
    """Return the prompt with its blanks filled, its label, its translation, or a continuation."""
    if isinstance(run.model, EncoderOnly):
        if run.config.model.labels:
            (classified,) = Classifier(run.model, run.tokenizer).classify([prompt])
            return classified.label
        (filled,) = fill_masks(run.model, run.tokenizer, [prompt])
        return filled.filled
    if run.config.model.translates:
        (translation,) = _translate_locally(run, [ReferenceTranslation(prompt, "", run.data.tag)])
        return translation
    assert isinstance(run.model, DecoderOnly)
    config = SamplingConfig(seed=run.config.training.seed, max_tokens=_SAMPLE_TOKENS, token_healing=False)
    (continuation,) = Generator(run.model, run.tokenizer, config).samples(prompt)
    return continuation.text
