"""`Generator`: continues prompts with a decoder-only model, by sampling or beam search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from lm.config.decoding import SamplingConfig
from lm.data.bucketing import batched
from lm.decoding.batching import (
    Continuation,
    Finish,
    Request,
    SampleSettings,
    SampleSpec,
    StopStringStream,
    Token,
    generate,
    generate_with_continuous_batching,
)
from lm.decoding.beam_search import Hypothesis, beam_search
from lm.decoding.sampling import Sampler, length_filters, parse_logit_biases
from lm.decoding.session import DecodeSession
from lm.decoding.speculative import AcceptanceStats, Drafter, ModelDrafter, PromptLookupDrafter, generate_speculatively
from lm.decoding.token_healing import HealedPrompt, PromptEnding, choose_healed_prompt, heal_prompts, text_after_prompt
from lm.engine.selection import EnginePlan, plan_engines
from lm.errors import LMError, UsageError
from lm.model.transformer import DecoderOnly
from lm.text.prompts import Prompt
from lm.tokenizer.special_tokens import build_text_frame
from lm.tokenizer.tokenizer import Tokenizer

PROMPT_LOOKUP = "prompt"
"""The draft that stands for prompt lookup decoding."""
_MIN_SHARED_PREFIX = 8
"""Tokens of a common prefix that is worth prefilling once."""
_HEALING_BATCH = 8
"""Prompts whose ends are healed together."""


@dataclass(frozen=True)
class Generator:
    """Continues prompts with one model.

    Attributes:
        use_cache: use a KV cache; without it everything is recomputed for each token, which is the reference.
        batch_size: concurrent samples; affects speed and memory, not the samples.
        draft: a draft model, or PROMPT_LOOKUP, for speculative decoding; samples are then generated one by one.
        acceptance_stats: counts of draft tokens so far.
        follows_examples: whether the model was trained on prompts that end with a token: there is no token healing
            then. Completions of examples are texts of their own, and are decoded so.
    """

    model: DecoderOnly
    tokenizer: Tokenizer
    config: SamplingConfig = field(default_factory=SamplingConfig)
    use_cache: bool = True
    batch_size: int = 16
    draft: DecoderOnly | str | None = None
    acceptance_stats: AcceptanceStats = field(default_factory=AcceptanceStats)
    follows_examples: bool = False

    def __post_init__(self) -> None:
        """UsageError if a draft model has another vocabulary size."""
        if isinstance(self.draft, DecoderOnly):
            sizes = [model.config.vocab_size for model in (self.draft, self.model)]
            if sizes[0] != sizes[1]:
                raise UsageError(
                    f"the draft model has a vocabulary of {sizes[0]} tokens, and the model one of {sizes[1]}: a draft "
                    "needs the tokenizer of the model"
                )

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler of the settings; without a seed, it has a random one, which stays.

        Raises:
            UsageError: a logit bias of the settings is malformed, or has no token.
        """
        biases = parse_logit_biases(self.config.logit_bias, self.tokenizer)
        return Sampler.from_config(self.config, biases, self.stop_ids)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        context: Sequence[int] = (),
        n: int = 1,
        first: int = 0,
        alternatives: int = 0,
    ) -> Iterator[Token | Finish]:
        """Sample continuations of a prompt; see `lm.decoding.batching.generate`.

        Args:
            prompt: a text; or IDs, at least one, which are continued as they are.
            context: IDs before a text, see `encode_continuation`; without them it starts a document.
            n: number of samples, in batches.
            first: number of the first sample. With a seed, sample i of a prompt is the same in every call, and in
                `continue_prompts`.
            alternatives: how many of the most probable tokens to return with each token.

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: the prompt is empty and there is no start token, an ID is not in the vocabulary, or the settings
                ban every token.
        """
        ids, plan = self.encode(prompt, context), self.plan(n)
        session, healed = DecodeSession(plan), list[HealedPrompt]()
        if (ending := self.find_ending(prompt, ids)) is not None:
            session.prefill_prefix(ending.prefix_ids[:-1])  # all retokenisations and samples start with it
            (healed,) = heal_prompts(session, [ending], self.tokenizer, self.sampler)
        rngs = ((number, self.sampler.rng(number, prompt=ids)) for number in range(first, first + n))
        requests = (self.build_request(ids, number, self.config.max_tokens, rng, healed) for number, rng in rngs)
        if self.draft is not None:
            yield from self._generate_speculatively(requests, plan, n, alternatives)
        elif healed:
            yield from generate_with_continuous_batching(
                session, requests, self.sampler, batch_size=self.batch_size,
                stop_ids=self.stop_ids, alternatives=alternatives,
            )  # fmt: skip
        else:
            for rows in batched((request.spec for request in requests), self.batch_size):
                yield from generate(
                    DecodeSession(plan), torch.tensor([ids]), rows, self.sampler,
                    stop_ids=self.stop_ids, alternatives=alternatives,
                )  # fmt: skip

    def _generate_speculatively(
        self, requests: Iterable[Request], plan: EnginePlan, n: int, alternatives: int
    ) -> Iterator[Token | Finish]:
        for request in requests:
            drafter: Drafter = PromptLookupDrafter()
            if isinstance(self.draft, DecoderOnly):
                draft_plan = plan_engines(self.draft, tokens=self._count_steps(n), use_cache=self.use_cache)
                drafter = ModelDrafter(DecodeSession(draft_plan), self.sampler)
            yield from generate_speculatively(
                DecodeSession(plan), drafter, torch.tensor([[*request.prompt]]), request.spec, self.sampler,
                stats=self.acceptance_stats, stop_ids=self.stop_ids, alternatives=alternatives,
            )  # fmt: skip

    def find_ending(self, prompt: str | Sequence[int], ids: Sequence[int]) -> PromptEnding | None:
        """Return the end of a prompt to retokenise, if any."""
        if not self.config.token_healing or self.follows_examples or not isinstance(prompt, str):
            return None
        return PromptEnding.find(self.tokenizer, prompt, ids)

    def build_request(
        self,
        ids: Sequence[int],
        number: int,
        max_tokens: int,
        rng: random.Random,
        healed: Sequence[HealedPrompt],
        *,
        settings: SampleSettings | None = None,
    ) -> Request:
        """Build the request for a sample.

        Args:
            max_tokens: at least 1.
            healed: retokenisations of the prompt, of which one is chosen; without any, the IDs are continued.
            settings: in a batch of samples with different settings.

        Raises:
            UsageError: the settings ban every retokenisation.
        """
        prompt, first_token, prompt_bytes = ids, None, 0
        if healed:
            chosen, first_token = choose_healed_prompt(healed, self.sampler, rng)
            prompt, prompt_bytes = chosen.prompt, chosen.prompt_bytes
        text_stream = self._open_text(prompt, first_token, prompt_bytes, self.config.stop)
        return Request(prompt, SampleSpec(number, max_tokens, text_stream, rng, first_token, prompt_bytes, settings))

    def samples(self, prompt: str | Sequence[int], *, n: int = 1, alternatives: int = 0) -> list[Continuation]:
        """Sample continuations to their ends; see `generate`."""
        continuations = [Continuation() for _ in range(n)]
        for event in self.generate(prompt, n=n, alternatives=alternatives):
            continuations[event.row].append(event)
        return continuations

    def continue_prompts(
        self, prompts: Iterable[Prompt], *, n: int = 1, common_prefix: str = "", alternatives: int = 0
    ) -> Iterator[tuple[Prompt, list[Continuation]]]:
        """Sample continuations of many prompts, with continuous batching.

        Args:
            prompts: consumed as there is room: see `sort_by_length`.
            common_prefix: of many prompts, prefilled once; see `common_prefix`.
            alternatives: how many of the most probable tokens to return with each token.

        Yields:
            A prompt and its samples when the last of them has ended.

        Raises:
            InputError: the tokenizer has no token for a character; the message names the prompt.
            UsageError: a prompt is empty and there is no start token, or the settings ban every token.
        """
        session = DecodeSession(self.plan())
        prefix = encode_prompt(self.tokenizer, common_prefix) if common_prefix else []
        session.prefill_prefix(prefix if len(prefix) >= _MIN_SHARED_PREFIX else [])
        continuations: dict[int, tuple[Prompt, list[Continuation]]] = {}
        requests = self._build_requests(prompts, n, continuations)
        for event in generate_with_continuous_batching(
            session,
            requests,
            self.sampler,
            batch_size=self.batch_size,
            stop_ids=self.stop_ids,
            alternatives=alternatives,
        ):
            number, sample = divmod(event.row, n)
            samples = continuations[number][1]
            samples[sample].append(event)
            if isinstance(event, Finish) and all(sample.finish_reason for sample in samples):
                yield continuations.pop(number)

    def _build_requests(
        self, prompts: Iterable[Prompt], n: int, continuations: dict[int, tuple[Prompt, list[Continuation]]]
    ) -> Iterator[Request]:
        """The requests of each prompt; samples are added to `continuations`."""
        for prompt, ids, healed in self._heal_prompts(prompts):
            continuations[prompt.number] = (prompt, [Continuation() for _ in range(n)])
            max_tokens = prompt.max_tokens or self.config.max_tokens
            for sample in range(n):
                rng = self.sampler.rng(sample, prompt=ids, repeat=prompt.repeat, seed=prompt.seed)
                yield self.build_request(ids, prompt.number * n + sample, max_tokens, rng, healed)

    def _heal_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, list[int], list[HealedPrompt]]]:
        session = DecodeSession(self.plan())
        for batch in batched(prompts, _HEALING_BATCH if self.config.token_healing else 1):
            ids = [self._encode_prompt(prompt) for prompt in batch]
            endings = [self.find_ending(prompt.text, prompt_ids) for prompt, prompt_ids in zip(batch, ids, strict=True)]
            healed = [ending for ending in endings if ending is not None]
            healed_prompts = iter(heal_prompts(session, healed, self.tokenizer, self.sampler) if healed else ())
            yield from zip(
                batch, ids, [[] if ending is None else next(healed_prompts) for ending in endings], strict=True
            )

    def _encode_prompt(self, prompt: Prompt) -> list[int]:
        try:
            return encode_prompt(self.tokenizer, prompt.text)
        except LMError as error:
            raise type(error)(f"{prompt.where}: {error}") from None

    def search(
        self,
        prompt: str | Sequence[int],
        *,
        beam_size: int,
        length_penalty: float = 1.0,
        n: int = 1,
        max_tokens: int | None = None,
    ) -> list[Continuation]:
        """Find the `n` most probable continuations by beam search, best first; see `lm.decoding.beam_search`.

        Of the settings only `max_tokens`, unless it is given, `min_tokens` and `ignore_eos` apply: there are no stop
        strings and no other filters.

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: the prompt is empty and there is no start token, an ID is not in the vocabulary, or `n` is
                greater than the beam.
        """
        limit, ids = max_tokens or self.config.max_tokens, self.encode(prompt)
        first, prompt_bytes, greedy = None, 0, Sampler(greedy=True)
        if (
            ending := self.find_ending(prompt, ids)
        ) is not None:  # the beam starts with the best retokenisation of the prompt
            (healed,) = heal_prompts(DecodeSession(self.plan(1)), [ending], self.tokenizer, greedy)
            chosen, token = choose_healed_prompt(healed, greedy, greedy.rng(0))
            ids, prompt_bytes, first = [*chosen.prompt], chosen.prompt_bytes, None if token is None else chosen.tokens
        (best,) = beam_search(
            DecodeSession(plan_engines(self.model, tokens=limit, shares_prefixes=True, use_cache=self.use_cache)),
            torch.tensor([ids]), beam_size=beam_size, max_tokens=limit, first_tokens=first,
            stop_ids=self.stop_ids, length_penalty=length_penalty, n=n,
            filters=[*length_filters(self.config, self.stop_ids)], max_added_bias=0.0,
        )  # fmt: skip
        return [self._to_continuation(hypothesis, ids, prompt_bytes) for hypothesis in best]

    def interrupt(self, sample: Continuation, prompt: Sequence[int]) -> None:
        """Finish an interrupted sample of a prompt, with all the text of its tokens."""
        sample.text = self._decode(prompt, sample.tokens, sample.prompt_bytes, self.config.stop)
        sample.finish_reason = "interrupted"

    def plan(self, n: int | None = None) -> EnginePlan:
        """Plan the engines for `n` samples of a prompt, or any number; see `plan_engines`."""
        return plan_engines(self.model, tokens=None if n is None else self._count_steps(n), use_cache=self.use_cache)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a sample: the end-of-text token and, of a chat template, the end-of-turn token."""
        return () if self.config.ignore_eos else self.tokenizer.stop_ids

    def encode(self, prompt: str | Sequence[int], context: Sequence[int] = ()) -> list[int]:
        """Encode a text after a context, or check IDs; errors as of `generate`."""
        if isinstance(prompt, str):
            return encode_continuation(self.tokenizer, context, prompt)
        ids, size = list(prompt), self.model.config.vocab_size
        if not ids:
            raise UsageError("the prompt is empty: give at least one token")
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise UsageError(f"token {wrong} is not in the vocabulary (IDs go from 0 to {size - 1})")
        return ids

    def _count_steps(self, n: int) -> int:
        """Decode steps of `n` samples, in batches, or one by one with a draft."""
        return self.config.max_tokens * -(-n // (self.batch_size if self.draft is None else 1))

    def _open_text(
        self, prompt: Sequence[int], first: int | None, prompt_bytes: int, stops: Sequence[str]
    ) -> StopStringStream:
        """Return the decoder of a continuation, whose first token begins with some bytes of the prompt."""
        text = text_after_prompt(self.tokenizer, first, prompt_bytes) if first is not None and prompt_bytes else None
        # a completion of an example is, a reply is part of a conversation
        is_own_text = self.follows_examples and self.tokenizer.chat_template is None
        stream = self.tokenizer.decode_stream(() if is_own_text else prompt)
        return StopStringStream(stream, stops, first_text=text)

    def _decode(
        self, prompt: Sequence[int], tokens: Sequence[int], prompt_bytes: int, stops: Sequence[str] = ()
    ) -> str:
        """Return the text of tokens after a prompt, up to a stop string."""
        stream = self._open_text(prompt, tokens[0], prompt_bytes, stops)
        return "".join(map(stream.feed, tokens)) + stream.finish()

    def _to_continuation(self, hypothesis: Hypothesis, prompt: Sequence[int], prompt_bytes: int) -> Continuation:
        return Continuation(
            text=self._decode(prompt, hypothesis.tokens, prompt_bytes),
            tokens=list(hypothesis.tokens),
            logprobs=list(hypothesis.logprobs),
            finish_reason=hypothesis.finish_reason,
            score=hypothesis.score,
            prompt_bytes=prompt_bytes,
        )


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Encode a prompt, after the start-of-text token if the tokenizer has one.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: the prompt is empty and there is no start token.
    """
    ids = [*build_text_frame(tokenizer).before, *tokenizer.encode(prompt)]
    if not ids:
        raise UsageError("the prompt is empty, and this tokenizer has no start-of-text token: give a prompt")
    return ids


def encode_continuation(tokenizer: Tokenizer, context: Sequence[int], text: str) -> list[int]:
    """Encode a text after a context; after an ended document it starts a new one.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: context and text are empty, and there is no start token.
    """
    if not context:
        return encode_prompt(tokenizer, text)
    frame = build_text_frame(tokenizer)
    is_ended = context[-1] in frame.after
    # In GPT-2 one token both ends a document and starts the next.
    start = [token for token in frame.before if is_ended and token != context[-1]]
    return [*context, *start, *tokenizer.encode(text)]


_SORT_WINDOW = 4096
"""Prompts that are sorted by length together; results wait for the last of them at most."""


def sort_by_length(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """Sort prompts by length, the shortest first, in windows that are read ahead."""
    for window in batched(prompts, _SORT_WINDOW):
        yield from sorted(window, key=lambda prompt: len(prompt.text))


def common_prefix(texts: Sequence[str]) -> str:
    """Return the whole words that all texts start with, and continue.

    Trailing white space is excluded: it may belong to the next token.
    """
    if len(texts) < 2:
        return ""
    first, last = min(texts), max(texts)  # their common prefix is that of all texts between them
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    common = "".join(character for character, _ in alike)
    return common[: max(0, *(common.rfind(space) for space in " \n\t"))].rstrip()
