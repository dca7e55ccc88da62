"""Translation of lines: batches of like length, results in the order of the input, a line for each line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.decoding import TranslationConfig
from lm.decoding.beam_search import Hypothesis, beam_search
from lm.decoding.ensemble import Ensemble
from lm.decoding.filters import Filter, History
from lm.decoding.generate import Finish, Token, end_ids, generate
from lm.decoding.sampling import Sampler
from lm.decoding.steps import Steps
from lm.decoding.translation_input import Line, TranslationModel, line_of, padded
from lm.decoding.translation_steps import EncoderDecoderSteps
from lm.errors import UsageError
from lm.tokenizer.framing import pair_frames
from lm.tokenizer.languages import tag_to

_READ_AHEAD = 4096

_GREEDY = Sampler(greedy=True)


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: without line ends and special tokens; begins with the prefix.
        tokens: those after the prefix; the one that ended it is among them.
        logprobs: of each token, in nats.
        score: see `Hypothesis`; of samples the sum of the log-probabilities.
        finish_reason: "end_of_text", "length", or "blank" for that of a blank line.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    score: float = 0.0
    finish_reason: str = "blank"


@dataclass(frozen=True, slots=True)
class Translated:
    """A line, and what became of it.

    Attributes:
        source: the line.
        translations: as many as were asked for, best first; or fewer, if there are no more.
        left_out: source tokens that were not read, for the model has no positions for them.
    """

    source: str
    translations: tuple[Translation, ...]
    left_out: int = 0


class Translator:
    """One model, or several that decide together, with all that says how."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        config: TranslationConfig | None = None,
        *,
        sampler: Sampler = _GREEDY,
        to: str | None = None,
    ) -> None:
        """Check that the models fit together, and the settings them.

        Args:
            models: one or more, with one target tokenizer.
            config: the settings.
            sampler: draws translations if it is not greedy; its filters count in a search too.
            to: the language, of models that translate into several: they have a token `<2LANGUAGE>` for each.

        Raises:
            UsageError: the models differ in their target tokenizers, or the language is not one of theirs.
        """
        self.models, self.config = tuple(models), config or TranslationConfig()
        self.tokenizer = self.models[0].tokenizer
        if any(model.tokenizer.sha256 != self.tokenizer.sha256 for model in self.models):
            raise UsageError("the models of an ensemble need the same target tokenizer, and these have different ones")
        self._frames = [
            pair_frames(model.tokenizer, model.source_tokenizer, tag=tag_to(model.source_tokenizer, to))
            for model in self.models
        ]
        self._sampler = Sampler(tuple(map(_after_start, sampler.filters)), sampler.greedy, sampler.seed)
        if self.config.n_best > self.config.beam and sampler.greedy:
            raise UsageError(f"{self.config.n_best} best need a beam at least as wide (--beam, --n-best)")

    def translate(self, lines: Iterable[str], *, prefixes: Iterable[str] | None = None) -> Iterator[Translated]:
        """Translate lines, in order; some are read ahead.

        Args:
            lines: without line ends; a blank one has a blank translation.
            prefixes: how each translation begins, if it is said; blank to leave it open. If they end before the
                lines, the others are left open.

        Raises:
            InputError: a tokenizer has no token for a character.
            UsageError: a prefix leaves no room in the positions of a model, or a filter rules out every token.
        """
        begun = itertools.chain(prefixes or (), itertools.repeat(""))
        numbered = zip(itertools.count(), lines, begun)
        while chunk := list(itertools.islice(numbered, self.config.read_ahead or _READ_AHEAD)):
            read = self._read(chunk)
            done = {line.number: self._blank(line) for line in read if line.is_blank}
            batches = list(self._batches([line for line in read if not line.is_blank]))
            for batch, results in zip(batches, self._side_by_side(batches), strict=True):
                done |= zip([line.number for line in batch], results, strict=True)
            yield from (done[line.number] for line in read)

    def _side_by_side(self, batches: Sequence[list[Line]]) -> Iterator[list[Translated]]:
        """Results of batches in order; on a CPU each thread has batches of its own.

        Steps are too small to share: with two threads a batch each, both are busy; two threads on one batch wait for
        each other, and for Python.
        """
        threads, device = torch.get_num_threads(), next(self.models[0].model.parameters()).device.type
        workers = min(threads, len(batches))
        if workers < 2 or device != "cpu" or self.config.coverage_penalty:  # which is watched for in the model itself
            yield from map(self._translated, batches)
            return
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(self._translated, batches)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def _read(self, chunk: Sequence[tuple[int, str, str]]) -> list[Line]:
        numbers, texts, prefixes = zip(*chunk, strict=True)
        encoded = [
            [
                (model, frames.source, ids)
                for ids in model.source_tokenizer.encode_batch([text.strip() for text in texts])
            ]
            for model, frames in zip(self.models, self._frames, strict=True)
        ]
        begun = [ids.tolist() for ids in self.tokenizer.encode_batch(prefixes)]
        return [
            line_of(number, text, sources, prefix)
            for number, text, sources, prefix in zip(numbers, texts, zip(*encoded, strict=True), begun, strict=True)
        ]

    def _blank(self, line: Line) -> Translated:
        return Translated(line.text, (Translation(""),) * self.config.n_best)

    def _batches(self, lines: Sequence[Line]) -> Iterator[list[Line]]:
        """Lines of like length side by side, those with prefixes of one length together; the longest first."""
        batch: list[Line] = []
        for line in sorted(lines, key=lambda line: (len(line.prefix), line.length), reverse=True):
            is_full = batch and (len(batch) + 1) * batch[0].length > self.config.batch_tokens
            if batch and (is_full or len(line.prefix) != len(batch[0].prefix)):
                yield batch
                batch = []
            batch.append(line)
        if batch:
            yield batch

    def _translated(self, batch: Sequence[Line]) -> list[Translated]:
        members = [
            EncoderDecoderSteps(
                member.model, *padded([line.sources[i] for line in batch]), coverage=self.config.coverage_penalty > 0
            )
            for i, member in enumerate(self.models)
        ]
        steps: Steps = members[0] if len(members) == 1 else Ensemble(members)
        prompts = torch.tensor([[self._frames[0].start, *line.prefix] for line in batch])
        found = (self._searched if self._sampler.greedy else self._drawn)(steps, members, prompts, batch)
        return [
            Translated(line.text, tuple(self._translation(line, one) for one in best), line.left_out)
            for line, best in zip(batch, found, strict=True)
        ]

    def _searched(
        self, steps: Steps, members: Sequence[EncoderDecoderSteps], prompts: Tensor, batch: Sequence[Line]
    ) -> list[list[Hypothesis]]:
        found = beam_search(
            steps,
            prompts,
            beam_size=self.config.beam,
            max_tokens=[self._limit(line) for line in batch],
            stop_ids=end_ids(self.tokenizer),
            length_penalty=self.config.length_penalty,
            n=self.config.n_best,
            refill=True,
            filters=self._sampler.filters,
            ending=_uncovered(members, self.config.coverage_penalty) if self.config.coverage_penalty else None,
        )
        if not all(found):
            raise UsageError("no token is left to choose: --logit-bias or --no-repeat-ngram rules out every one")
        return found

    def _drawn(
        self, steps: Steps, _members: Sequence[EncoderDecoderSteps], prompts: Tensor, batch: Sequence[Line]
    ) -> list[list[Hypothesis]]:
        """Samples; those of a line are the same whatever batch it is in."""
        n = self.config.n_best
        numbers = [line.number * n + sample for line in batch for sample in range(n)]
        drawn: dict[int, list[Token]] = {number: [] for number in numbers}
        reasons = {}
        events = generate(
            steps, prompts, self._sampler, max_tokens=[self._limit(line) for line in batch for _ in range(n)],
            stop_ids=end_ids(self.tokenizer), n=n, numbers=numbers,
        )  # fmt: skip
        for event in events:
            if isinstance(event, Finish):
                reasons[event.row] = event.reason
            else:
                drawn[event.row].append(event)
        samples = [_sample(drawn[number], reasons[number]) for number in numbers]
        return [samples[start : start + n] for start in range(0, len(samples), n)]

    def _limit(self, line: Line) -> int:
        """Tokens that a translation may have after its prefix."""
        config = self.config
        longest = max(1, int(config.max_length_ratio * line.length + config.max_length_extra) - len(line.prefix))
        ends = [model.limit for model in self.models if model.limit is not None]
        room = min(ends, default=longest + len(line.prefix)) - len(line.prefix)
        if room < 1:
            raise UsageError(f"the prefix of line {line.number + 1} fills all of the model's positions")
        return min(longest, room)

    def _translation(self, line: Line, found: Hypothesis) -> Translation:
        text = self.tokenizer.decode([*line.prefix, *found.tokens])
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
        return Translation(text, found.tokens, found.logprobs, found.score, found.finish_reason)


def _after_start(apply: Filter) -> Filter:
    """A filter that does not see the start token, which may be the one that ends a text as well."""
    return lambda logits, history: apply(logits, History(history.tokens[:, 1:], history.prompt_length - 1))


def _uncovered(members: Sequence[EncoderDecoderSteps], weight: float) -> Callable[[], Tensor]:
    """What is added to scores for what the rows have not attended to."""
    return lambda: weight * torch.stack([member.coverage() for member in members]).mean(0)


def _sample(tokens: Sequence[Token], reason: str) -> Hypothesis:
    logprobs = tuple(token.logprob for token in tokens)
    assert reason in {"end_of_text", "length"}
    return Hypothesis(
        tuple(token.id for token in tokens), logprobs, sum(logprobs), "length" if reason == "length" else "end_of_text"
    )
