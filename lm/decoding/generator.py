"""`Generator`: continues prompts with a decoder-only model, by sampling or beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from lm.config.inference import SamplingConfig
from lm.corpus.encode import encode_prompt
from lm.decoding import DecodeSession
from lm.decoding.batching import Continuation, Finish, Sample, TextStream, Token, decode
from lm.decoding.beam_search import beam_search
from lm.decoding.sampling import Sampler, parse_logit_biases
from lm.decoding.speculative import Drafter, decode_speculatively, look_up_in_prompt, model_drafter
from lm.decoding.token_healing import Healing
from lm.engine import EnginePlan, plan_engines
from lm.engine.kv_cache import PrefixCache
from lm.errors import LMError, UsageError
from lm.model import DecoderOnly
from lm.text.decode import normalize_text
from lm.text.text_file import Prompt
from lm.tokenizer import Tokenizer

PROMPT_LOOKUP = "prompt"
"""The draft that stands for prompt lookup decoding."""


@dataclass(frozen=True)
class Generator:
    """Continues prompts with one model.

    Attributes:
        batch_size: concurrent samples; affects speed and memory, not the samples.
        draft: a draft model, or PROMPT_LOOKUP, for speculative decoding; samples are then generated one by one.
        follows_examples: whether the model was trained on prompts that end with a token: there is no token healing
            then. Completions of examples are texts of their own, and are decoded so.
        sampler: of the settings; without a seed, it has a random one, which stays.

    Raises:
        UsageError: a logit bias of the settings is malformed, or has no token.
    """

    model: DecoderOnly
    tokenizer: Tokenizer
    config: SamplingConfig = field(default_factory=SamplingConfig)
    batch_size: int = 16
    draft: DecoderOnly | str | None = None
    follows_examples: bool = False
    sampler: Sampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        biases = parse_logit_biases(self.config.logit_bias, self.tokenizer)
        object.__setattr__(self, "sampler", Sampler.from_config(self.config, biases, self.stop_ids))

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a sample: the end-of-text token and, of a chat template, the end-of-turn token."""
        return () if self.config.ignore_eos else self.tokenizer.stop_ids

    @cached_property
    def _prefixes(self) -> PrefixCache:
        return PrefixCache(self.model)

    def generate(self, prompt: str | Sequence[int], *, n: int = 1, alternatives: int = 0) -> Iterator[Token | Finish]:
        """Sample continuations of a prompt; see `lm.decoding.batching.decode`.

        Args:
            prompt: a text, which starts a document; or IDs, at least one, which are continued as they are.
            n: number of samples, in batches. With a seed, sample i of a prompt is the same in every call, and in
                `continue_prompts`.
            alternatives: how many of the most probable tokens to return with each token.

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: the prompt is empty and there is no start token, an ID is not in the vocabulary, or the settings
                ban every token.
        """
        ids = self.encode(prompt)
        healing = self.find_healing(prompt, ids)
        samples = (
            self.build_sample(ids, number, healing, number=number, alternatives=alternatives) for number in range(n)
        )
        yield from self.decode(samples, n)

    def decode(
        self, samples: Iterable[Sample], n: int | None = None, *, prefix: Sequence[int] = ()
    ) -> Iterator[Token | Finish]:
        """Sample continuations; with a draft one after the other.

        Args:
            n: number of samples, if it is known.
            prefix: what all prompts start with, of which only what is new is computed, and once.
        """
        plan = self.plan(n)
        if self.draft is None:
            if plan.use_cache and prefix:
                self._prefixes.extend(prefix)
            yield from decode(DecodeSession(plan, prefixes=self._prefixes), samples, batch_size=self.batch_size)
            return
        for sample in samples:
            propose: Drafter = look_up_in_prompt
            if isinstance(self.draft, DecoderOnly):
                draft_plan = plan_engines(self.draft, tokens=n and n * self.config.text_limit)
                propose = model_drafter(DecodeSession(draft_plan), self.sampler)
            yield from decode_speculatively(DecodeSession(plan), propose, sample)

    def find_healing(self, prompt: str | Sequence[int], ids: Sequence[int]) -> Healing | None:
        """Return the end of a prompt that is chosen again, if it is a text."""
        if not self.config.token_healing or self.follows_examples or not isinstance(prompt, str):
            return None
        unpenalised = replace(
            self.config, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, no_repeat_ngram_size=None
        )
        biases = parse_logit_biases(self.config.logit_bias, self.tokenizer)
        biases.pop(ids[-1], None)  # the prompt may always be continued as it is
        return Healing.find(self.tokenizer, normalize_text(prompt), ids, Sampler.from_config(unpenalised, biases))

    def build_sample(
        self,
        ids: Sequence[int],
        index: int,
        healing: Healing | None = None,
        *,
        repeat: int = 0,
        seed: int | None = None,
        number: int = 0,
        max_tokens: int | None = None,
        alternatives: int = 0,
    ) -> Sample:
        """Return a sample of a prompt, with the settings unless others are given.

        Args:
            index: of the sample, among those of its prompt; for `repeat` and `seed` see `Sampler.rng`.
            healing: see `find_healing`.
            number: of the sample, in its events.
        """
        rng = self.sampler.rng(index, prompt=ids, repeat=repeat, seed=seed)
        prompt = ids if healing is None else ids[:-1]
        return Sample(
            prompt, self.sampler, rng, max_tokens or self.config.text_limit, number, self.stop_ids,
            self._open_text(prompt, self.config.stop), alternatives, healing,
        )  # fmt: skip

    def samples(self, prompt: str | Sequence[int], *, n: int = 1, alternatives: int = 0) -> list[Continuation]:
        """Sample continuations to their ends; see `generate`."""
        continuations = [Continuation() for _ in range(n)]
        for event in self.generate(prompt, n=n, alternatives=alternatives):
            continuations[event.row].append(event)
        return continuations

    def continue_prompts(
        self, prompts: Iterable[Prompt], *, n: int = 1, alternatives: int = 0
    ) -> Iterator[tuple[Prompt, list[Continuation]]]:
        """Sample continuations of many prompts.

        Args:
            prompts: consumed as there is room; those of similar length together are faster.
            alternatives: how many of the most probable tokens to return with each token.

        Yields:
            A prompt and its samples when the last of them has ended.

        Raises:
            InputError: the tokenizer has no token for a character.
            UsageError: a prompt is empty and there is no start token, or the settings ban every token.
        """
        continuations: dict[int, tuple[Prompt, list[Continuation]]] = {}

        def build_samples() -> Iterator[Sample]:
            for prompt in prompts:
                try:
                    ids = self.encode(prompt.text)
                except LMError as error:
                    raise error.at(prompt.where) from None
                continuations[prompt.number] = (prompt, [Continuation() for _ in range(n)])
                healing = self.find_healing(prompt.text, ids)
                for sample in range(n):
                    yield self.build_sample(
                        ids, sample, healing, repeat=prompt.repeat, seed=prompt.seed, number=prompt.number * n + sample,
                        max_tokens=prompt.max_tokens, alternatives=alternatives,
                    )  # fmt: skip

        for event in self.decode(build_samples()):
            number, sample = divmod(event.row, n)
            samples = continuations[number][1]
            samples[sample].append(event)
            if isinstance(event, Finish) and all(sample.finish_reason for sample in samples):
                yield continuations.pop(number)

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

        Of the settings only `max_tokens`, unless it is given, and `ignore_eos` apply: there are no stop strings, no
        filters and no token healing.

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: the prompt is empty and there is no start token, an ID is not in the vocabulary, or `n` is
                greater than the beam.
        """
        limit, ids = max_tokens or self.config.text_limit, self.encode(prompt)
        plan = plan_engines(self.model, tokens=limit)
        (best,) = beam_search(
            DecodeSession(plan), torch.tensor([ids]), beam_size=beam_size, max_tokens=[limit], stop_ids=self.stop_ids,
            length_penalty=length_penalty, n=n,
        )  # fmt: skip
        for found in best:
            stream = self._open_text(ids)
            found.text = "".join(map(stream.feed, found.tokens)) + stream.finish()
        return best

    def plan(self, n: int | None = None) -> EnginePlan:
        """Plan the engines for `n` samples of a prompt, or any number; see `plan_engines`."""
        batches = n and -(-n // (self.batch_size if self.draft is None else 1))
        return plan_engines(self.model, tokens=batches and self.config.text_limit * batches)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Encode a text, or check IDs; errors as of `generate`."""
        if isinstance(prompt, str):
            return encode_prompt(prompt, self.tokenizer)
        size = self.model.config.vocab_size
        if not len(prompt) or not all(0 <= token < size for token in prompt):
            raise UsageError(f"the prompt needs at least one token, and IDs from 0 to {size - 1}")
        return list(prompt)

    def _open_text(self, prompt: Sequence[int], stops: Sequence[str] = ()) -> TextStream:
        """Return the decoder of a continuation."""
        # a completion of an example is a text of its own, a reply is part of a conversation
        is_own_text = self.follows_examples and self.tokenizer.chat_template is None
        return TextStream(self.tokenizer.decode_stream(() if is_own_text else prompt), stops)
