"""`Generator`: continues prompts with a decoder-only model, by sampling or beam search."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonprefix

import torch

from lm.config.decoding import SamplingConfig
from lm.data.batch import batched
from lm.decoding.batching import Continuation, Finish, Sample, TextStream, Token, decode
from lm.decoding.beam_search import beam_search
from lm.decoding.sampling import Sampler, length_filters, parse_logit_biases
from lm.decoding.session import DecodeSession
from lm.decoding.speculative import AcceptanceStats, Drafter, ModelDrafter, PromptLookupDrafter, decode_speculatively
from lm.decoding.token_healing import HealedPrompt, PromptEnding, choose_healed_prompt, heal_prompts, text_after_prompt
from lm.engine.kv_cache import PrefixCache
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
_SORT_WINDOW = 4096
"""Prompts that are sorted by length together; results wait for the last of them at most."""


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
        if isinstance(self.draft, DecoderOnly) and self.draft.config.vocab_size != self.model.config.vocab_size:
            raise UsageError("a draft model needs the tokenizer of the model, and its vocabulary has another size")

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler of the settings; without a seed, it has a random one, which stays.

        Raises:
            UsageError: a logit bias of the settings is malformed, or has no token.
        """
        biases = parse_logit_biases(self.config.logit_bias, self.tokenizer)
        return Sampler.from_config(self.config, biases, self.stop_ids)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a sample: the end-of-text token and, of a chat template, the end-of-turn token."""
        return () if self.config.ignore_eos else self.tokenizer.stop_ids

    @cached_property
    def _prefixes(self) -> PrefixCache:
        return PrefixCache(self.model)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        context: Sequence[int] = (),
        n: int = 1,
        first: int = 0,
        alternatives: int = 0,
    ) -> Iterator[Token | Finish]:
        """Sample continuations of a prompt; see `lm.decoding.batching.decode`.

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
        ending = self.find_ending(prompt, ids)
        session = self.open_session(plan, () if ending is None else ending.prefix_ids[:-1])
        (healed,) = heal_prompts(session, [ending], self.tokenizer, self.sampler)
        samples = (
            self.build_sample(
                ids, self.sampler.rng(number, prompt=ids), healed, number=number, alternatives=alternatives
            )
            for number in range(first, first + n)
        )
        if self.draft is None:
            yield from decode(session, samples, batch_size=self.batch_size)
            return
        for sample in samples:
            drafter: Drafter = PromptLookupDrafter()
            if isinstance(self.draft, DecoderOnly):
                draft_plan = plan_engines(self.draft, tokens=n * self.config.max_tokens, use_cache=self.use_cache)
                drafter = ModelDrafter(DecodeSession(draft_plan), self.sampler)
            yield from decode_speculatively(DecodeSession(plan), drafter, sample, self.acceptance_stats)

    def open_session(self, plan: EnginePlan, prefix: Sequence[int] = ()) -> DecodeSession:
        """Open a session for rows that start with a prefix, of which only what is new is computed, and once."""
        if plan.use_cache and prefix:
            self._prefixes.extend(prefix)
        return DecodeSession(plan, prefixes=self._prefixes)

    def find_ending(self, prompt: str | Sequence[int], ids: Sequence[int]) -> PromptEnding | None:
        """Return the end of a prompt to retokenise, if any."""
        if not self.config.token_healing or self.follows_examples or not isinstance(prompt, str):
            return None
        return PromptEnding.find(self.tokenizer, prompt, ids)

    def build_sample(
        self,
        ids: Sequence[int],
        rng: random.Random,
        healed: Sequence[HealedPrompt] = (),
        *,
        number: int = 0,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        alternatives: int = 0,
    ) -> Sample:
        """Return a sample of a prompt, with the settings unless others are given.

        Args:
            healed: retokenisations of the prompt, of which one is chosen; without any, the IDs are continued.

        Raises:
            UsageError: the settings ban every retokenisation.
        """
        prompt, first_token, prompt_bytes, config = ids, None, 0, self.config
        if healed:
            chosen, first_token = choose_healed_prompt(healed, self.sampler, rng)
            prompt, prompt_bytes = chosen.prompt, chosen.prompt_bytes
        text = self._open_text(prompt, first_token, prompt_bytes, config.stop if stop is None else stop)
        return Sample(
            prompt, sampler or self.sampler, rng, max_tokens or config.max_tokens, number, self.stop_ids, text,
            alternatives, first_token, prompt_bytes,
        )  # fmt: skip

    def samples(self, prompt: str | Sequence[int], *, n: int = 1, alternatives: int = 0) -> list[Continuation]:
        """Sample continuations to their ends; see `generate`."""
        continuations = [Continuation() for _ in range(n)]
        for event in self.generate(prompt, n=n, alternatives=alternatives):
            continuations[event.row].append(event)
        return continuations

    def continue_prompts(
        self, prompts: Iterable[Prompt], *, n: int = 1, common_prefix: str = "", alternatives: int = 0
    ) -> Iterator[tuple[Prompt, list[Continuation]]]:
        """Sample continuations of many prompts.

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
        prefix = encode_prompt(self.tokenizer, common_prefix) if common_prefix else []
        session = self.open_session(self.plan(), prefix if len(prefix) >= _MIN_SHARED_PREFIX else [])
        continuations: dict[int, tuple[Prompt, list[Continuation]]] = {}

        def build_samples() -> Iterator[Sample]:
            healing = self.open_session(self.plan())
            for batch in batched(prompts, _HEALING_BATCH if self.config.token_healing else 1):
                ids_of_prompts = [self._encode(prompt) for prompt in batch]
                pairs = zip(batch, ids_of_prompts, strict=True)
                endings = [self.find_ending(prompt.text, ids) for prompt, ids in pairs]
                healed_prompts = heal_prompts(healing, endings, self.tokenizer, self.sampler)
                for prompt, ids, healed in zip(batch, ids_of_prompts, healed_prompts, strict=True):
                    continuations[prompt.number] = (prompt, [Continuation() for _ in range(n)])
                    for sample in range(n):
                        rng = self.sampler.rng(sample, prompt=ids, repeat=prompt.repeat, seed=prompt.seed)
                        number = prompt.number * n + sample
                        yield self.build_sample(
                            ids, rng, healed, number=number, max_tokens=prompt.max_tokens, alternatives=alternatives
                        )

        for event in decode(session, build_samples(), batch_size=self.batch_size):
            number, sample = divmod(event.row, n)
            samples = continuations[number][1]
            samples[sample].append(event)
            if isinstance(event, Finish) and all(sample.finish_reason for sample in samples):
                yield continuations.pop(number)

    def _encode(self, prompt: Prompt) -> list[int]:
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
        first, prompt_bytes = None, 0
        sampler = Sampler(tuple(length_filters(self.config, self.stop_ids)), greedy=True)
        ending = self.find_ending(prompt, ids)
        (healed,) = heal_prompts(DecodeSession(self.plan(1)), [ending], self.tokenizer, Sampler())
        if healed:  # the beam starts with the best retokenisation of the prompt
            chosen, token = choose_healed_prompt(healed, sampler, sampler.rng(0))
            ids, prompt_bytes, first = [*chosen.prompt], chosen.prompt_bytes, None if token is None else chosen.tokens
        plan = plan_engines(self.model, tokens=limit, use_cache=self.use_cache)
        (best,) = beam_search(
            DecodeSession(plan), torch.tensor([ids]), beam_size=beam_size, max_tokens=limit, first_tokens=first,
            stop_ids=self.stop_ids, length_penalty=length_penalty, n=n, sampler=sampler,
        )  # fmt: skip
        return [
            Continuation(
                self._decode(ids, hypothesis.tokens, prompt_bytes), list(hypothesis.tokens), list(hypothesis.logprobs),
                finish_reason=hypothesis.finish_reason, score=hypothesis.score, prompt_bytes=prompt_bytes,
            )
            for hypothesis in best
        ]  # fmt: skip

    def interrupt(self, sample: Continuation, prompt: Sequence[int]) -> None:
        """Finish an interrupted sample of a prompt, with all the text of its tokens."""
        sample.text = self._decode(prompt, sample.tokens, sample.prompt_bytes, self.config.stop)
        sample.finish_reason = "interrupted"

    def plan(self, n: int | None = None) -> EnginePlan:
        """Plan the engines for `n` samples of a prompt, or any number; see `plan_engines`."""
        batches = None if n is None else -(-n // (self.batch_size if self.draft is None else 1))
        tokens = None if batches is None else self.config.max_tokens * batches
        return plan_engines(self.model, tokens=tokens, use_cache=self.use_cache)

    def encode(self, prompt: str | Sequence[int], context: Sequence[int] = ()) -> list[int]:
        """Encode a text after a context, or check IDs; errors as of `generate`."""
        if isinstance(prompt, str):
            return encode_continuation(self.tokenizer, context, prompt)
        size = self.model.config.vocab_size
        if not len(prompt):
            raise UsageError("the prompt is empty: give at least one token")
        for token in prompt:
            if not 0 <= token < size:
                raise UsageError(f"token {token} is not in the vocabulary (IDs go from 0 to {size - 1})")
        return list(prompt)

    def _open_text(
        self, prompt: Sequence[int], first: int | None, prompt_bytes: int, stops: Sequence[str]
    ) -> TextStream:
        """Return the decoder of a continuation, whose first token begins with some bytes of the prompt."""
        text = text_after_prompt(self.tokenizer, first, prompt_bytes) if first is not None and prompt_bytes else None
        # a completion of an example is, a reply is part of a conversation
        is_own_text = self.follows_examples and self.tokenizer.chat_template is None
        return TextStream(self.tokenizer.decode_stream(() if is_own_text else prompt), stops, first_text=text)

    def _decode(
        self, prompt: Sequence[int], tokens: Sequence[int], prompt_bytes: int, stops: Sequence[str] = ()
    ) -> str:
        """Return the text of tokens after a prompt, up to a stop string."""
        stream = self._open_text(prompt, tokens[0], prompt_bytes, stops)
        return "".join(map(stream.feed, tokens)) + stream.finish()


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Encode a prompt, after the start-of-text token if the tokenizer has one; errors as of `encode_continuation`."""
    return encode_continuation(tokenizer, (), prompt)


def encode_continuation(tokenizer: Tokenizer, context: Sequence[int], text: str) -> list[int]:
    """Encode a text after a context; without one, or after an ended document, it starts a document.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: context and text are empty, and there is no start token.
    """
    frame = build_text_frame(tokenizer)
    # In GPT-2 one token both ends a document and starts the next.
    starts = not context or context[-1] in frame.after
    start = [token for token in frame.before if starts and token not in context[-1:]]
    ids = [*context, *start, *tokenizer.encode(text)]
    if not ids:
        raise UsageError("the prompt is empty, and this tokenizer has no start-of-text token: give a prompt")
    return ids


def sort_by_length(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """Sort prompts by length, the shortest first, in windows that are read ahead."""
    for window in batched(prompts, _SORT_WINDOW):
        yield from sorted(window, key=lambda prompt: len(prompt.text))


def common_prefix(texts: Sequence[str]) -> str:
    """Return the whole words that all texts start with, and continue.

    Trailing white space is excluded: it may belong to the next token.
    """
    common = commonprefix(texts) if len(texts) > 1 else ""  # noqa: RUF071 (character by character)
    return common[: max(0, *(common.rfind(space) for space in " \n\t"))].rstrip()
