"""`Translator`: translates lines in batches of similar length, one result per line, in order."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lm.config.decoding import TranslationConfig
from lm.config.model import check_heads_given
from lm.data.batch import batched, length_batches
from lm.decoding.batching import Continuation, Sample, decode
from lm.decoding.beam_search import CoveragePenalty, Hypothesis, beam_search
from lm.decoding.sampling import ALL_BANNED, Filter, History, Sampler
from lm.decoding.session import DecodeSession
from lm.decoding.translation_input import SourceLine, TranslationModel, pad_sources
from lm.engine.selection import plan_engines
from lm.errors import InputError, UsageError
from lm.processes import ParallelMap, map_on_threads
from lm.text.dependency_trees import DependencyHeads, check_heads
from lm.text.prompts import RepeatCounter
from lm.tokenizer.special_tokens import build_pair_frames

_READ_AHEAD = 4096


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
        sampler: Sampler | None = None,
        to: str | None = None,
        parallel_map: ParallelMap[list[SourceLine], list[TranslatedLine]] | None = None,
    ) -> None:
        """Create a translator, and check that models and settings fit together.

        Args:
            models: one or more, with one target tokenizer.
            sampler: samples translations if it is not greedy [default: greedy]; its filters apply to beam search too.
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
        sampler, (start, target) = sampler or Sampler(greedy=True), (self._frames[0].start, self._frames[0].target)
        truncations = sampler.truncations
        if start not in target.after:

            def ban_start(logits: Tensor, _: History) -> Tensor:
                return logits.index_fill(-1, torch.tensor([start], device=logits.device), -torch.inf)

            truncations = (*truncations, ban_start)
        penalties = tuple(map(_skip_start_token, sampler.penalties))
        self._sampler = dataclasses.replace(sampler, penalties=penalties, truncations=truncations)
        if self.config.n_best > self.config.beam and sampler.greedy:
            raise UsageError(f"{self.config.n_best} translations per line need a beam at least as wide")
        has_attention = all(model.model.decoder.attention_layers(cross=True) for model in self.models)
        if self.config.coverage_penalty and not has_attention:
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
            blank = (Translation(""),) * self.config.n_best
            done = {line.number: TranslatedLine(line.text, blank, heads=line.heads) for line in read}
            batches = list(self._batches([line for line in read if line.text.strip()]))
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
        _, texts, prefixes, all_heads = zip(*chunk, strict=True)
        for number, text, _, heads in chunk:
            if heads is not None:
                check_heads(heads, text, where=f"line {number + 1}")
        checked = [None if heads is None else tuple(heads) for heads in all_heads]
        stripped = [text.strip() for text in texts]
        of_models = [
            [model.add_frame(ids, frames.source) for ids in model.encode(stripped, checked)]
            for model, frames in zip(self.models, self._frames, strict=True)
        ]
        prefix_ids = self.tokenizer.encode_batch(prefixes)
        lines = zip(chunk, zip(*of_models, strict=True), prefix_ids, checked, strict=True)
        return [
            SourceLine(number, text, tuple(ids for ids, _ in framed), prefix.tolist(), max(n for _, n in framed), heads)
            for (number, text, _, _), framed, prefix, heads in lines
        ]

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
        sources = [pad_sources([line.sources[index] for line in batch]) for index in range(len(self.models))]
        prompts = [[self._frames[0].start, *line.prefix] for line in batch]
        limits, stop_ids = list(map(self._max_tokens, batch)), self._frames[0].target.after
        config, sampler, n = self.config, self._sampler, self.config.n_best
        found: Sequence[Sequence[Hypothesis | Continuation]]
        if sampler.greedy:
            found = beam_search(
                session, torch.tensor(prompts), beam_size=config.beam, max_tokens=limits, stop_ids=stop_ids,
                length_penalty=config.length_penalty, n=n, refill=True, sampler=sampler, sources=sources,
                coverage=CoveragePenalty(config.coverage_penalty, sources) if config.coverage_penalty else None,
            )  # fmt: skip
            if not all(found):
                raise UsageError(ALL_BANNED)
        else:
            samples = [
                Sample(
                    prompt, sampler, sampler.rng(number, prompt=_seed_text(line), repeat=line.repeat), limit,
                    number=index * n + number, stop_ids=stop_ids,
                )
                for index, (line, prompt, limit) in enumerate(zip(batch, prompts, limits, strict=True))
                for number in range(n)
            ]  # fmt: skip
            continuations = [Continuation() for _ in samples]
            for event in decode(session, samples, batch_size=len(samples), sources=sources):
                continuations[event.row].append(event)
            found = list(batched(continuations, n))
        return [
            TranslatedLine(
                line.text, tuple(self._to_translation(line, each) for each in best), line.left_out, line.heads
            )
            for line, best in zip(batch, found, strict=True)
        ]

    def _max_tokens(self, line: SourceLine) -> int:
        """The most tokens of a translation after its prefix."""
        longest, n_prefix = self.config.max_length_ratio * line.length + self.config.max_length_extra, len(line.prefix)
        limits = [model.max_target_length(ids) for model, ids in zip(self.models, line.sources, strict=True)]
        room = min((limit for limit in limits if limit is not None), default=math.inf) - n_prefix
        if room < 1:
            raise UsageError(f"the prefix of line {line.number + 1} fills all of the model's positions")
        return int(min(max(1, int(longest) - n_prefix), room))

    def _to_translation(self, line: SourceLine, found: Hypothesis | Continuation) -> Translation:
        """Decode a hypothesis or a sample: one line, with the prefix."""
        known = [token for token in found.tokens if token < self.tokenizer.vocab_size]  # others are padding
        text = self.tokenizer.decode([*line.prefix, *known])
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
        score = sum(found.logprobs) if found.score is None else found.score
        return Translation(text, tuple(found.tokens), tuple(found.logprobs), score, str(found.finish_reason))


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


def _skip_start_token(apply: Filter) -> Filter:
    """A filter that ignores the start token, which may also be the end token."""

    def apply_without_start(logits: Tensor, history: History) -> Tensor:
        lengths = [length - 1 for length in history.prompt_lengths]
        return apply(logits, History([row[1:] for row in history.rows], lengths, history.device))

    return apply_without_start
