"""`Translator`: translates lines in batches of similar length, one result per line, in order."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from lm.checkpoint import LoadedModel
from lm.config.inference import TranslationConfig
from lm.config.model import ModelConfig, check_heads_given
from lm.corpus import RaggedArray
from lm.corpus.encode import TreeReader, wrap_sources
from lm.data import batched, length_batches
from lm.decoding import DecodeSession, pad
from lm.decoding.batching import Continuation
from lm.decoding.beam_search import beam_search
from lm.decoding.sampling import ALL_BANNED, Sampler, add_biases
from lm.engine import plan_engines
from lm.errors import UsageError
from lm.model import DecoderOnly, EncoderDecoder, EncoderOnly
from lm.text.parallel_text import check_heads
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import LanguageTag, SpecialTokenFrame, build_pair_frames, choose_language_tag

READ_AHEAD = 4096
"""Lines that are batched by length together."""
_MAX_LENGTH_RATIO, _MAX_LENGTH_EXTRA = 2, 10
"""The most tokens of a translation per ID of its source, and further ones."""

SourceIds = list[int] | list[list[int]]
"""IDs, or IDs with tree positions (see `lm.corpus.encode`)."""


@dataclass(frozen=True)
class TranslationModel:
    """A model that translates, in eval mode.

    Attributes:
        tokenizer: of the targets.
        source_tokenizer: of the sources.
        has_tags: whether a source starts with a language tag, if the tokenizer has any.
    """

    model: DecoderOnly | EncoderDecoder
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    has_tags: bool = True

    @classmethod
    def from_loaded(cls, loaded: LoadedModel) -> Self:
        """The model of a run; UsageError if it was not trained on sentence pairs."""
        config, model, tokenizer = loaded.config, loaded.model, loaded.tokenizer
        if isinstance(model, EncoderOnly) or not model.config.translates:
            raise UsageError(
                f"{loaded.folder}: this run {config.purpose}; only a run trained on sentence pairs translates"
            )
        source_tokenizer = loaded.source_tokenizer or tokenizer
        return cls(model, tokenizer, source_tokenizer, config.has_language_tags)

    def tag_to(self, language: str | None, *, file_language: str | None = None) -> LanguageTag | None:
        """The tag of a target language; see `lm.tokenizer.chat_template.choose_language_tag`."""
        return choose_language_tag(self.source_tokenizer, language, file_language=file_language, has_tags=self.has_tags)

    @property
    def _configs(self) -> list[ModelConfig]:
        return [model.config for model in self.model.members]

    def encode(
        self, lines: Sequence[str], heads: Sequence[Sequence[int] | None], frame: SpecialTokenFrame
    ) -> Iterator[tuple[SourceIds, int]]:
        """Yield the source of each line in a frame, truncated to the model's context, and the number of IDs left out.

        If source and target are one sequence, half of the context is left for the target.
        """
        encoded = self.source_tokenizer.encode_batch(lines)
        most = max(0, min(map(_max_source_length, self._configs)) - len(frame))
        reader = None if self.model.config.syntax == "none" else TreeReader(self.source_tokenizer)
        for text, ids, sentence_heads in zip(lines, encoded, heads, strict=True):
            left_out = max(0, len(ids) - most)
            if reader is None:
                yield frame.wrap(ids[:most]).tolist(), left_out
            else:
                check_heads(sentence_heads := sentence_heads or (), text, where=text)
                rows = RaggedArray.from_rows([reader.read(text, ids, sentence_heads)[:most]])
                yield wrap_sources(rows, frame).values.tolist(), left_out

    def max_target_length(self, source: SourceIds) -> float:
        """The most target IDs after a source."""
        limits = [(config.position_limit or math.inf, config.decoder_only) for config in self._configs]
        return min(limit - decoder_only * len(source) for limit, decoder_only in limits)


def _max_source_length(config: ModelConfig) -> int:
    most = config.position_limit or config.context_length  # longer ones than in training are translated badly
    return most // 2 if config.decoder_only else most


@dataclass(frozen=True, slots=True)
class TranslatedLine:
    """A line with its translations.

    Attributes:
        translations: as many as requested, best first; or fewer, if there are no more.
        left_out: source tokens at its end that were truncated.
        heads: the dependency heads of its words, if given.
    """

    source: str
    translations: tuple[Continuation, ...]
    left_out: int = 0
    heads: Sequence[int] | None = None


class Translator:
    """Translates lines with a model."""

    def __init__(
        self,
        model: TranslationModel,
        config: TranslationConfig | None = None,
        *,
        sampler: Sampler | None = None,
        to: str | None = None,
    ) -> None:
        """Create a translator.

        Args:
            sampler: of the filters on logits, for beam search.
            to: target language, of a model with several: it has a token `<2LANGUAGE>` for each.

        Raises:
            UsageError: the language is unknown.
        """
        self.model, self.config = model, config or TranslationConfig()
        self._frames = build_pair_frames(model.tokenizer, model.source_tokenizer, tag=model.tag_to(to))
        sampler, start, self._stop_ids = sampler or Sampler(), self._frames.start, self._frames.target.after
        ban_start = () if start in self._stop_ids else (add_biases({start: -math.inf}),)
        self._sampler = replace(sampler, filters=(*sampler.filters, *ban_start))

    def translate(
        self,
        lines: Iterable[str],
        *,
        dependency_heads: Iterable[Sequence[int]] | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> Iterator[TranslatedLine]:
        """Translate lines, in order.

        Args:
            lines: without line ends; a blank one has a blank translation.
            dependency_heads: of the words of each line, for models that read dependency trees.
            read_ahead: lines to batch by length.

        Raises:
            InputError: a tokenizer has no token for a character, or heads are no tree of their line.
            UsageError: a filter rules out every token, there are heads for models that read no trees, or none for one
                that does, or more results than the beam has.
        """
        check_heads_given(self.model.model.config, are_given=dependency_heads is not None)
        trees = itertools.repeat(None) if dependency_heads is None else dependency_heads
        pairs = zip(lines, trees, strict=dependency_heads is not None)
        for chunk in batched(pairs, read_ahead):
            texts, heads = [text.strip() for text, _ in chunk], [heads for _, heads in chunk]
            sources, left_out = zip(*self.model.encode(texts, heads, self._frames.source), strict=True)
            blank = [Continuation(finish_reason="blank")] * self.config.n_best
            filled = np.flatnonzero([bool(text) for text in texts])
            lengths = np.array([len(sources[row]) for row in filled])
            order = np.argsort(-lengths, kind="stable")  # the longest lines first
            batches = [filled[rows] for rows in length_batches(lengths, tokens=self.config.batch_tokens, order=order)]
            found: dict[int, list[Continuation]] = {}
            translated = self._translate_batches([[sources[row] for row in rows] for rows in batches])
            for rows, results in zip(batches, translated, strict=True):
                found |= zip(rows.tolist(), results, strict=True)
            for row, ((text, of_text), n_left_out) in enumerate(zip(chunk, left_out, strict=True)):
                yield TranslatedLine(text, tuple(found.get(row, blank)), n_left_out, of_text)

    def _translate_batches(self, batches: Sequence[list[SourceIds]]) -> Iterator[list[list[Continuation]]]:
        """Translate batches in order; on a CPU each thread has its own batches.

        Steps are too small to parallelise: two threads with a batch each are both busy; two threads on one batch wait
        for each other, and for the GIL.
        """
        threads, device = torch.get_num_threads(), next(self.model.model.parameters()).device.type
        workers = min(threads, len(batches))
        if workers < 2 or device != "cpu":
            yield from map(self._translate_batch, batches)
            return
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                yield from pool.map(self._translate_batch, batches)
        finally:
            torch.set_num_threads(threads)

    def _translate_batch(self, batch: Sequence[SourceIds]) -> list[list[Continuation]]:
        """Translate lines, given their sources."""
        limits = [
            int(min(_MAX_LENGTH_RATIO * len(source) + _MAX_LENGTH_EXTRA, self.model.max_target_length(source)))
            for source in batch
        ]
        found = beam_search(
            DecodeSession(plan_engines(self.model.model)),
            torch.tensor([[self._frames.start]] * len(batch)), beam_size=self.config.beam, max_tokens=limits,
            stop_ids=self._stop_ids, n=self.config.n_best, length_penalty=self.config.length_penalty, refill=True,
            sampler=self._sampler, sources=pad(batch),
        )  # fmt: skip
        if not all(found):
            raise UsageError(ALL_BANNED)
        for translation in itertools.chain.from_iterable(found):
            tokenizer = self.model.tokenizer
            known = [token for token in translation.tokens if token < tokenizer.vocab_size]  # no padding
            translation.text = re.sub("\r\n|\n|\r", " ", tokenizer.decode(known))
        return found
