"""Token healing: the tokens at the end of a prompt are chosen again, together with the continuation.

A prompt is tokenised where it ends, often where the whole text has no token boundary: inside a word, or after a space.
Such tokens are rare in training, and what follows them is garbage. So the last word of a prompt is removed, and sampled
among all retokenisations: a prefix of the word as the tokenizer encodes it, and one token that starts with the rest of
the word and may extend beyond it. The probability of a retokenisation is the product of those of its tokens. Choosing
token by token would prefer shorter words: " be" to " because" for the prompt " beca".

Source: Lundberg 2023 (guidance), token by token; retokenisations ("covers"): Vieira et al. 2024, section 3, and Phan et
al. 2024.
"""

from __future__ import annotations

import codecs
import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lm.decoding.sampling import ALL_BANNED, NO_TOKEN, History, Sampler, apply_filters, draw
from lm.decoding.session import DecodeSession
from lm.errors import UsageError, check_not_nan
from lm.tokenizer.tokenizer import Tokenizer

_SUBWORD_KINDS = ("bpe", "unigram")
"""Tokenizers with subword tokens. Characters and bytes have no boundaries to miss."""
_MAX_BYTES = 24
"""The most bytes to remove, within the last word."""
_CONTEXT_CHARACTERS = 200
"""Characters before the last word that are encoded with its prefixes, if the tokens are the same."""

TokenSequence = tuple[int, ...]


@dataclass(frozen=True)
class PromptEnding:
    """The end of a prompt that is retokenised.

    Attributes:
        prefix_ids: IDs before it, at least one.
        text: its bytes; they start with a character.
        tokenisations: the tokens of its prefixes, with the number of bytes of each; the empty prefix included.
    """

    prefix_ids: Sequence[int]
    text: bytes
    tokenisations: Mapping[TokenSequence, int]

    @classmethod
    def find(cls, tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> PromptEnding | None:
        """Find the end of a prompt to retokenise; None if there is none.

        Args:
            ids: its tokens, after a start token or an earlier text. These are kept, and so is at least one ID.
        """
        if tokenizer.kind not in _SUBWORD_KINDS or tokenizer.merges_within_characters:
            return None
        tokens, words = tokenizer.encode_words([text])[0]
        if not len(tokens) or len(ids) < 2:
            return None
        last = tokens[words == words[-1]].tolist()[-(len(ids) - 1) :]
        spelled = [tokenizer.token_bytes(token) for token in last]
        for first in range(len(last)):
            ending_bytes = b"".join(spelled[first:])
            if len(ending_bytes) <= _MAX_BYTES and _is_end_of(ending_bytes, text):
                break
        else:
            return None
        own = tuple(last[first:])
        beginnings = [own[:n] for n in range(len(own))]
        beginnings += _tokenise_beginnings(tokenizer, text, own, len(ending_bytes.decode()))
        tokenisations = {}
        for tokenisation in beginnings:
            beginning = b"".join(map(tokenizer.token_bytes, tokenisation))
            if ending_bytes.startswith(beginning):
                tokenisations[tokenisation] = len(beginning)
        return cls(ids[: len(ids) - len(own)], ending_bytes, tokenisations)

    def next_tokens(self, tokens: TokenSequence) -> Sequence[int]:
        """The tokens that follow a sequence in longer tokenisations."""
        n = len(tokens)
        longer = (other for other in self.tokenisations if len(other) > n and other[:n] == tokens)
        return list(dict.fromkeys(other[n] for other in longer))


def _is_end_of(token_bytes: bytes, text: str) -> bool:
    """Whether tokens spell the end of a text, from a character on; some tokenizers start a text with a space."""
    try:
        return bool(token_bytes) and f" {text}".endswith(token_bytes.decode())
    except UnicodeDecodeError:
        return False


def _tokenise_beginnings(
    tokenizer: Tokenizer, text: str, own: TokenSequence, characters: int
) -> Iterator[TokenSequence]:
    """Tokenise each prefix of the last `characters` of a text, which are its `own` tokens."""
    for first in (max(0, len(text) - characters - _CONTEXT_CHARACTERS), 0):
        tail = text[first:]
        prefixes = [tail[: len(tail) - missing] for missing in range(characters)]
        whole, *shorter = [tuple(ids.tolist()) for ids in tokenizer.encode_batch(prefixes)]
        before = len(whole) - len(own)
        if whole[before:] == own:
            yield from (ids[before:] for ids in shorter if ids[:before] == whole[:before])
            return


class TokenPrefixIndex:
    """The tokens of a vocabulary sorted by their bytes, without special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = {*tokenizer.special_tokens.values()}
        tokens = (token for token in range(tokenizer.vocab_size) if token not in special)
        ordered = sorted((spelled, token) for token in tokens if (spelled := tokenizer.token_bytes(token)))
        self._token_bytes = [spelled for spelled, _ in ordered]
        self._ids = torch.tensor([token for _, token in ordered])

    def starting_with(self, prefix: bytes) -> tuple[Tensor, Tensor]:
        """Return the IDs of tokens equal to some bytes, and of longer tokens that start with them."""
        first, beyond = bisect_left(self._token_bytes, prefix), bisect_left(self._token_bytes, prefix + b"\0")
        stem = prefix.rstrip(b"\xff")
        end = bisect_left(self._token_bytes, stem[:-1] + bytes([stem[-1] + 1])) if stem else len(self._token_bytes)
        return self._ids[first:beyond], self._ids[beyond:end]


_indices: WeakKeyDictionary[Tokenizer, TokenPrefixIndex] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class HealedPrompt:
    """Retokenisations of a prompt that differ in the last token alone.

    Attributes:
        prompt: IDs to continue; they include the last token if it ends with the prompt.
        prompt_bytes: bytes of the last token that are the end of the prompt, if it extends beyond it.
        tokens: (n,) IDs of last tokens that extend beyond the prompt, if they do.
        scores: (n,) log-probabilities of all chosen tokens, nats; (1,) if they end with the prompt.
    """

    prompt: Sequence[int]
    prompt_bytes: int
    tokens: Tensor
    scores: Tensor


@torch.inference_mode()
def heal_prompts(
    session: DecodeSession, endings: Sequence[PromptEnding | None], tokenizer: Tokenizer, sampler: Sampler
) -> list[list[HealedPrompt]]:
    """Find all retokenisations of the ends of some prompts; none where there is no ending.

    Args:
        session: without rows, before and afterwards.
        sampler: its biases and penalties apply to tokens that extend beyond the prompt.

    Raises:
        InputError: the model's output is not a number.
    """
    healed: list[list[HealedPrompt]] = [[] for _ in endings]
    found = [(number, ending) for number, ending in enumerate(endings) if ending is not None]
    if not found:
        return healed
    if tokenizer not in _indices:
        _indices[tokenizer] = TokenPrefixIndex(tokenizer)
    rows: list[tuple[int, PromptEnding, TokenSequence, float]] = [(*prompt, (), 0.0) for prompt in found]
    logits = session.add([ending.prefix_ids for _, ending in found]).last_logits.cpu()
    while True:
        logprobs, extended = logits.double().log_softmax(-1), []
        for row, (number, ending, tokens, score) in enumerate(rows):
            check_not_nan(float(logprobs[row, 0]))
            if tokens in ending.tokenisations:
                prompt, rest = [*ending.prefix_ids, *tokens], ending.text[ending.tokenisations[tokens] :]
                same, beyond = _indices[tokenizer].starting_with(rest)
                scores = logprobs[row] + score
                healed[number] += [
                    HealedPrompt([*prompt, id_], 0, same[:0], scores[id_, None]) for id_ in same.tolist()
                ]
                if len(beyond):
                    filtered = apply_filters(scores[None], sampler.penalties, History([prompt], [len(prompt)]))[0]
                    healed[number].append(HealedPrompt(prompt, len(rest), beyond, filtered[beyond]))
            for token in ending.next_tokens(tokens):
                extended.append((row, (number, ending, (*tokens, token), score + float(logprobs[row, token]))))
        if not extended:
            session.release(range(len(session)))
            return healed
        session.select([row for row, _ in extended])
        rows = [prompt for _, prompt in extended]
        logits = session.extend(torch.tensor([[tokens[-1]] for _, _, tokens, _ in rows])).last_logits.cpu()


def choose_healed_prompt(
    healed_prompts: Sequence[HealedPrompt], sampler: Sampler, rng: random.Random
) -> tuple[HealedPrompt, int | None]:
    """Sample a retokenisation; return it with the token that extends beyond the prompt, if one does.

    Raises:
        UsageError: the sampler bans every one.
    """
    choices = [
        (healed_prompt, token) for healed_prompt in healed_prompts for token in healed_prompt.tokens.tolist() or [None]
    ]
    scores = torch.cat([healed_prompt.scores for healed_prompt in healed_prompts])[None]
    scores = apply_filters(scores, sampler.truncations, History([[]], [0]))
    index = int(scores.argmax()) if sampler.greedy else int(draw(scores.softmax(-1), [rng]))
    if index == NO_TOKEN:
        raise UsageError(ALL_BANNED)
    return choices[index]


def text_after_prompt(tokenizer: Tokenizer, token: int, prompt_bytes: int) -> str:
    """Return the complete characters of a token after its first `prompt_bytes` bytes."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(tokenizer.token_bytes(token)[prompt_bytes:])
