"""`Translator`: translates lines in batches of similar length, one result per line, in order."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.model import check_heads_given
from lm.data.bucketing import batched, length_batches
from lm.decoding.batching import Continuation, SampleSpec, generate
from lm.decoding.beam_search import CoveragePenalty, Hypothesis, beam_search
from lm.decoding.sampling import Filter, History, Sampler, no_token_left
from lm.decoding.session import DecodeSession, SourceBatch
from lm.decoding.translation_input import Ids, SourceLine, TranslationModel, build_source_line, pad_sources
from lm.engine.selection import plan_engines
from lm.errors import InputError, UsageError
from lm.processes import ParallelMap, map_on_threads
from lm.text.dependency_trees import DependencyHeads, check_heads
from lm.text.prompts import RepeatCounter
from lm.tokenizer.special_tokens import PairSpecialTokens, SpecialTokenFrame, build_pair_frames

_READ_AHEAD = 4096

_GREEDY = Sampler.from_config(SamplingConfig(temperature=0))


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: without line ends and special tokens; starts with the prefix.
        tokens: after the prefix, the end token included.
        logprobs: of each token, in nats.
        score: see `Hypothesis`; of samples the summed log-probability.
        finish_reason: "end_of_text", "length", or "blank" for a blank line.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    score: float = 0.0
    finish_reason: str = "blank"

    def __repr__(self) -> str:
        return f"<Translation {self.text!r}, score {self.score:.4g}>"


@dataclass(frozen=True, slots=True)
class TranslatedLine:
    """A line with its translations.

    Attributes:
        translations: as many as requested, best first; or fewer, if there are no more.
        left_out: source tokens at its end that were truncated.
        heads: the dependency heads of its words, if given.
    """

    source: str
    translations: tuple[Translation, ...]
    left_out: int = 0
    heads: DependencyHeads | None = None

    def __repr__(self) -> str:
        return f"<Translated {self.source!r}: {', '.join(map(repr, self.translations))}>"


class Translator:
    """Translates lines with one model or an ensemble."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        config: TranslationConfig | None = None,
        *,
        sampler: Sampler = _GREEDY,
        to: str | None = None,
        parallel_map: ParallelMap[list[SourceLine], list[TranslatedLine]] | None = None,
    ) -> None:
        """Create a translator, and check that models and settings fit together.

        Args:
            models: one or more, with one target tokenizer.
            sampler: samples translations if it is not greedy; its filters apply to beam search too.
            to: target language, of models with several: they have a token `<2LANGUAGE>` for each.
            parallel_map: translates batches in other processes, each with such a translator (`translate_batch`).

        Raises:
            UsageError: the models differ in their target tokenizers, the language is unknown, or a model without
                attention has a coverage penalty.
        """
        self.models, self.config, self._parallel_map = tuple(models), config or TranslationConfig(), parallel_map
        self.tokenizer = self.models[0].tokenizer
        if any(model.tokenizer.sha256 != self.tokenizer.sha256 for model in self.models):
            raise UsageError("the models of an ensemble need the same target tokenizer, and these have different ones")
        self._frames = [
            build_pair_frames(model.tokenizer, model.source_tokenizer, tag=model.tag_to(to)) for model in self.models
        ]
        truncations = (*map(_skip_start_token, sampler.truncations), *_ban_start_token(self._frames[0]))
        self._sampler = dataclasses.replace(
            sampler, penalties=tuple(map(_skip_start_token, sampler.penalties)), truncations=truncations
        )
        if self.config.n_best > self.config.beam and sampler.greedy:
            raise UsageError(f"{self.config.n_best} translations per line need a beam at least as wide")
        if self.config.coverage_penalty and not all(
            model.model.decoder.attention_layers(cross=True) for model in self.models
        ):
            raise UsageError("a coverage penalty needs a model with cross-attention")

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        dependency_heads: Iterable[Sequence[int]] | None = None,
    ) -> Iterator[TranslatedLine]:
        """Translate lines, in order; some are read ahead.

        Args:
            lines: without line ends; a blank one has a blank translation.
            prefixes: the beginning of each translation; a blank one leaves it to the model. If they end before the
                lines, the model begins the others itself.
            dependency_heads: of the words of each line, for models that read dependency trees.

        Raises:
            InputError: a tokenizer has no token for a character, or heads are no tree of their line.
            UsageError: a prefix leaves no room in the positions of a model, a filter rules out every token, or there
                are heads for models that read no trees, or none for one that does.
        """
        check_heads_given(*(model.model.config for model in self.models), are_given=dependency_heads is not None)
        all_prefixes = itertools.chain(prefixes or (), itertools.repeat(""))
        numbered = zip(itertools.count(), lines, all_prefixes, _pad_with_none(dependency_heads))
        repeats = RepeatCounter()
        for chunk in batched(numbered, self.config.read_ahead or _READ_AHEAD):
            read = self._encode_lines(chunk)
            if not self._sampler.greedy:
                read = [dataclasses.replace(line, repeat=repeats.count(_seed_text(line))) for line in read]
            done = {line.number: self._blank_result(line) for line in read if line.is_blank}
            batches = list(self._batches([line for line in read if not line.is_blank]))
            for batch, results in zip(batches, self._translate_batches(batches), strict=True):
                done |= zip([line.number for line in batch], results, strict=True)
            yield from (done[line.number] for line in read)

    def _translate_batches(self, batches: Sequence[list[SourceLine]]) -> Iterator[list[TranslatedLine]]:
        """Translate batches in order; on a CPU each thread has its own batches, unless other processes have them.

        Steps are too small to parallelise: two threads with a batch each are both busy; two threads on one batch wait
        for each other, and for the GIL.
        """
        if self._parallel_map is not None:
            yield from self._parallel_map(batches)
            return
        threads, device = torch.get_num_threads(), next(self.models[0].model.parameters()).device.type
        workers = min(threads, len(batches))
        if workers < 2 or device != "cpu" or self.config.coverage_penalty:  # coverage needs hooks on the model
            yield from map(self.translate_batch, batches)
            return
        try:
            yield from map_on_threads(
                self.translate_batch, batches, threads=workers, prepare=partial(torch.set_num_threads, 1)
            )
        finally:
            torch.set_num_threads(threads)

    def _encode_lines(self, chunk: Sequence[tuple[int, str, str, Sequence[int] | None]]) -> list[SourceLine]:
        numbers, texts, prefixes, _ = zip(*chunk, strict=True)
        heads = [_check_heads(line_heads, text, number) for number, text, _, line_heads in chunk]
        sources = zip(*(self._encode_sources(index, texts, heads) for index in range(len(self.models))), strict=True)
        prefix_ids = [ids.tolist() for ids in self.tokenizer.encode_batch(prefixes)]
        return [build_source_line(*line) for line in zip(numbers, texts, sources, prefix_ids, heads, strict=True)]

    def _encode_sources(
        self, index: int, texts: Sequence[str], heads: Sequence[DependencyHeads | None]
    ) -> list[tuple[TranslationModel, SpecialTokenFrame, Ids]]:
        model, frame = self.models[index], self._frames[index].source
        return [(model, frame, ids) for ids in model.encode([text.strip() for text in texts], heads)]

    def _blank_result(self, line: SourceLine) -> TranslatedLine:
        return TranslatedLine(line.text, (Translation(""),) * self.config.n_best, heads=line.heads)

    def _batches(self, lines: Sequence[SourceLine]) -> Iterator[list[SourceLine]]:
        """Batches of lines of similar length and equal prefix length; the longest first."""
        lines_by_prefix = sorted(lines, key=lambda line: len(line.prefix), reverse=True)
        for _, same in itertools.groupby(lines_by_prefix, key=lambda line: len(line.prefix)):
            group = list(same)
            lengths = np.array([line.length for line in group])
            order = np.argsort(-lengths, kind="stable")
            for rows in length_batches(lengths, tokens=self.config.batch_tokens, order=order):
                yield [group[row] for row in rows]

    def translate_batch(self, batch: Sequence[SourceLine]) -> list[TranslatedLine]:
        """Translate a batch of lines encoded by this translator."""
        session = DecodeSession(*(plan_engines(member.model) for member in self.models))
        sources = [pad_sources([line.sources[i] for line in batch]) for i in range(len(self.models))]
        prompts = torch.tensor([[self._frames[0].start, *line.prefix] for line in batch])
        if self._sampler.greedy:
            hypotheses = self._beam_search(session, prompts, batch, sources)
        else:
            hypotheses = self._sample(session, prompts, batch, sources)
        return [
            TranslatedLine(
                line.text,
                tuple(self._to_translation(line, hypothesis) for hypothesis in best),
                line.left_out,
                line.heads,
            )
            for line, best in zip(batch, hypotheses, strict=True)
        ]

    def _beam_search(
        self, session: DecodeSession, prompts: Tensor, batch: Sequence[SourceLine], sources: Sequence[SourceBatch]
    ) -> list[list[Hypothesis]]:
        penalty = self.config.coverage_penalty
        hypotheses = beam_search(
            session,
            prompts,
            beam_size=self.config.beam,
            max_tokens=[self._max_tokens(line) for line in batch],
            stop_ids=self._frames[0].target.after,
            length_penalty=self.config.length_penalty,
            n=self.config.n_best,
            refill=True,
            filters=self._sampler.filters,
            max_added_bias=self._sampler.max_added_bias,
            sources=sources,
            coverage=CoveragePenalty(penalty, sources) if penalty else None,
        )
        if not all(hypotheses):
            raise no_token_left()
        return hypotheses

    def _sample(
        self, session: DecodeSession, prompts: Tensor, batch: Sequence[SourceLine], sources: Sequence[SourceBatch]
    ) -> list[list[Hypothesis]]:
        n = self.config.n_best
        rows = [
            SampleSpec(
                line.number * n + sample, self._max_tokens(line),
                rng=self._sampler.rng(sample, prompt=_seed_text(line), repeat=line.repeat),
            )
            for line in batch
            for sample in range(n)
        ]  # fmt: skip
        continuations = {row.number: Continuation() for row in rows}
        stop_ids = self._frames[0].target.after
        for event in generate(session, prompts, rows, self._sampler, sources=sources, stop_ids=stop_ids):
            continuations[event.row].append(event)
        samples = [_to_hypothesis(continuations[row.number]) for row in rows]
        return [samples[start : start + n] for start in range(0, len(samples), n)]

    def _max_tokens(self, line: SourceLine) -> int:
        """The most tokens of a translation after its prefix."""
        config = self.config
        longest = max(1, int(config.max_length_ratio * line.length + config.max_length_extra) - len(line.prefix))
        max_lengths = (model.max_target_length(source) for model, source in zip(self.models, line.sources, strict=True))
        max_length = min(
            (max_length for max_length in max_lengths if max_length is not None), default=longest + len(line.prefix)
        ) - len(line.prefix)
        if max_length < 1:
            raise UsageError(f"the prefix of line {line.number + 1} fills all of the model's positions")
        return min(longest, max_length)

    def _to_translation(self, line: SourceLine, hypothesis: Hypothesis) -> Translation:
        """Decode a hypothesis: one line, with the prefix."""
        known = [
            token for token in hypothesis.tokens if token < self.tokenizer.vocab_size
        ]  # the others are vocabulary padding
        text = self.tokenizer.decode([*line.prefix, *known])
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
        return Translation(text, hypothesis.tokens, hypothesis.logprobs, hypothesis.score, hypothesis.finish_reason)


def _seed_text(line: SourceLine) -> str:
    """What determines the random numbers of a line's samples, besides the seed."""
    return f"{line.prefix} {line.text.strip()}"


def _pad_with_none(heads: Iterable[Sequence[int]] | None) -> Iterator[Sequence[int] | None]:
    """Yield heads, or None for each line without any; InputError if they end before the lines."""
    if heads is None:
        yield from itertools.repeat(None)
    else:
        yield from heads
        raise InputError("there are fewer lines of heads than lines to translate")


def _check_heads(heads: Sequence[int] | None, text: str, number: int) -> DependencyHeads | None:
    """The heads of a line's words, if given and a tree; `number` is the line's, from 0."""
    if heads is None:
        return None
    check_heads(heads, text, where=f"line {number + 1}")
    return tuple(heads)


def _skip_start_token(apply: Filter) -> Filter:
    """A filter that ignores the start token, which may also be the end token."""
    return lambda logits, history: apply(logits, History(history.tokens[:, 1:], history.prompt_length - 1))


def _ban_start_token(frames: PairSpecialTokens) -> list[Filter]:
    """A filter that bans the start token, unless it is also the end token."""
    if frames.start in frames.target.after:
        return []
    start = torch.tensor([frames.start])
    return [lambda logits, _: logits.index_fill(-1, start.to(logits.device), -torch.inf)]


def _to_hypothesis(sample: Continuation) -> Hypothesis:
    """A sample as a hypothesis, whose score is the summed log-probability."""
    assert sample.finish_reason is not None
    assert sample.finish_reason != "interrupted"
    return Hypothesis(tuple(sample.tokens), tuple(sample.logprobs), sum(sample.logprobs), sample.finish_reason)
