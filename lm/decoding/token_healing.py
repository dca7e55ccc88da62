"""Token healing: the tokens at the end of a prompt are chosen again, together with what follows.

A prompt is cut into tokens where it ends, often where the whole text has no boundary: inside a word, or after a space.
Such tokens are rare in training, and what follows them is garbage. So the last word of a prompt is taken back, and
chosen among all ways to cover it: a beginning of the word as the tokenizer spells it, and one token that begins with
the rest of the word and may go beyond it. The probability of a cover is the product of those of its tokens. Choosing
token by token instead would prefer words that are shorter: " be" to " because" for the prompt " beca".

Source: Lundberg 2023 (guidance), token by token; covers: Vieira et al. 2024, section 3, and Phan et al. 2024.
"""

from __future__ import annotations

import codecs
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lm.decoding.filters import History, apply_filters
from lm.decoding.sampler import NO_TOKEN_LEFT, Sampler, draw, no_token_left
from lm.decoding.session import DecodeSession
from lm.errors import check_number
from lm.tokenizer.tokenizer import Tokenizer

_SUBWORD_KINDS = ("bpe", "unigram")
"""Tokenizers whose tokens are parts of words. Characters and bytes have no boundaries that a text could miss."""
_MAX_BYTES = 24
"""How far back tokens are taken, within the last word."""
_CONTEXT_CHARACTERS = 200
"""Characters before the last word that are encoded with its beginnings, if all of them make the same tokens."""

_NO_HISTORY = History(torch.empty(1, 0, dtype=torch.long), 0)

TokenSequence = tuple[int, ...]


@dataclass(frozen=True)
class PromptEnding:
    """The end of a prompt that is chosen again.

    Attributes:
        prefix_ids: ids before it, at least one.
        text: its bytes; they begin with a character.
        tokenisations: how its beginnings are spelled, and how many bytes each of them has; none has no tokens.
    """

    prefix_ids: Sequence[int]
    text: bytes
    tokenisations: Mapping[TokenSequence, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> PromptEnding | None:
        """The end of a prompt; None if it has none that could be spelled otherwise.

        Args:
            tokenizer: of the model.
            text: the prompt.
            ids: its tokens, behind a start token or an earlier text. These are not taken back, and one id always stays.
        """
        if tokenizer.kind not in _SUBWORD_KINDS or tokenizer.merges_within_characters:
            return None
        tokens, words = tokenizer.encode_words([text])[0]
        if not len(tokens):
            return None
        last = tokens[words == words[-1]].tolist()[-(len(ids) - 1) :] if len(ids) > 1 else []
        spelled = {token: tokenizer.token_bytes(token) for token in last}
        for first in range(len(last)):
            own, taken = last[first:], b"".join(spelled[token] for token in last[first:])
            if len(taken) <= _MAX_BYTES and _is_end_of(taken, text):
                break
        else:
            return None
        spellings = {tuple(own[:n]): len(b"".join(spelled[token] for token in own[:n])) for n in range(len(own))}
        for spelling in _tokenise_beginnings(tokenizer, text, own, len(taken.decode())):
            beginning = b"".join(map(tokenizer.token_bytes, spelling))
            if taken.startswith(beginning):
                spellings[spelling] = len(beginning)
        return cls(ids[: len(ids) - len(own)], taken, spellings)

    def next_tokens(self, spelling: TokenSequence) -> Iterable[int]:
        """The tokens that follow the beginning of a spelling in longer ones."""
        n = len(spelling)
        return dict.fromkeys(each[n] for each in self.tokenisations if len(each) > n and each[:n] == spelling)


def _is_end_of(taken: bytes, text: str) -> bool:
    """Whether some tokens spell the end of a text, from a character on; some tokenizers begin a text with a space."""
    try:
        return bool(taken) and f" {text}".endswith(taken.decode())
    except UnicodeDecodeError:
        return False


def _tokenise_beginnings(
    tokenizer: Tokenizer, text: str, own: Sequence[int], characters: int
) -> Iterator[TokenSequence]:
    """How the tokenizer spells each beginning of the last `characters` of a text, which are its `own` tokens."""
    for first in (max(0, len(text) - characters - _CONTEXT_CHARACTERS), 0):
        tail = text[first:]
        cut = [tail[: len(tail) - missing] for missing in range(characters)]
        whole, *shorter = [tuple(ids.tolist()) for ids in tokenizer.encode_batch(cut)]
        before = len(whole) - len(own)
        if whole[before:] == tuple(own):
            yield from (ids[before:] for ids in shorter if ids[:before] == whole[:before])
            return


class TokenPrefixIndex:
    """The tokens of a vocabulary by their bytes, without special ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = {*tokenizer.special_tokens.values()}
        tokens = (token for token in range(tokenizer.vocab_size) if token not in special)
        ordered = sorted((spelled, token) for token in tokens if (spelled := tokenizer.token_bytes(token)))
        self._token_bytes = [spelled for spelled, _ in ordered]
        self._ids = torch.tensor([token for _, token in ordered])

    def starting_with(self, prefix: bytes) -> tuple[Tensor, Tensor]:
        """The ids of the tokens that are some bytes, and of those that begin with them and go on."""
        first, beyond = bisect_left(self._token_bytes, prefix), bisect_left(self._token_bytes, prefix + b"\0")
        stem = prefix.rstrip(b"\xff")
        end = bisect_left(self._token_bytes, stem[:-1] + bytes([stem[-1] + 1])) if stem else len(self._token_bytes)
        return self._ids[first:beyond], self._ids[beyond:end]


_vocabularies: WeakKeyDictionary[Tokenizer, TokenPrefixIndex] = WeakKeyDictionary()


def _prefix_index(tokenizer: Tokenizer) -> TokenPrefixIndex:
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = TokenPrefixIndex(tokenizer)
    return _vocabularies[tokenizer]


@dataclass(frozen=True, slots=True)
class HealedPrompt:
    """Ways to cover the end of a prompt that differ in the last token alone.

    Attributes:
        prompt: ids that a sample follows; the last token is among them where the cover ends with the prompt.
        overlap: bytes of the last token that are the end of the prompt, where it goes beyond it.
        tokens: (n,) ids of the last tokens that go beyond the prompt; none where the cover ends with it.
        scores: (n,) log-probabilities of all tokens that are chosen, nats; (1,) where the cover ends with the prompt.
    """

    prompt: Sequence[int]
    overlap: int
    tokens: Tensor
    scores: Tensor


@torch.inference_mode()
def heal_prompts(
    session: DecodeSession, endings: Sequence[PromptEnding], tokenizer: Tokenizer, sampler: Sampler
) -> list[list[HealedPrompt]]:
    """All ways to cover the ends of some prompts.

    Args:
        session: with no rows yet, and with none afterwards.
        endings: of the prompts.
        tokenizer: of the model.
        sampler: its biases and penalties count for tokens that go beyond the prompt.

    Raises:
        InputError: the model's output is not a number.
    """
    found: list[list[HealedPrompt]] = [[] for _ in endings]
    logits = session.add([ending.prefix_ids for ending in endings]).last_logits.cpu()
    reached: list[tuple[int, TokenSequence, float]] = [(place, (), 0.0) for place in range(len(endings))]
    while True:
        logprobs = logits.double().log_softmax(-1)
        longer: list[tuple[int, tuple[int, TokenSequence, float]]] = []  # each with the row that it continues
        for row, (place, spelling, score) in enumerate(reached):
            ending = endings[place]
            check_number(float(logprobs[row, 0]))
            if spelling in ending.tokenisations:
                found[place] += _healed_prompts_after(spelling, ending, logprobs[row] + score, tokenizer, sampler)
            for token in ending.next_tokens(spelling):
                longer.append((row, (place, (*spelling, token), score + float(logprobs[row, token]))))
        if not longer:
            session.release(range(len(session)))
            return found
        session.select([row for row, _ in longer])
        reached = [each for _, each in longer]
        logits = session.extend(torch.tensor([[spelling[-1]] for _, spelling, _ in reached])).last_logits.cpu()


def _healed_prompts_after(
    spelling: TokenSequence, ending: PromptEnding, scores: Tensor, tokenizer: Tokenizer, sampler: Sampler
) -> Iterator[HealedPrompt]:
    """The covers that begin with a spelling, given the (vocabulary,) scores of the tokens after it."""
    prompt, rest = [*ending.prefix_ids, *spelling], ending.text[ending.tokenisations[spelling] :]
    same, beyond = _prefix_index(tokenizer).starting_with(rest)
    for token in same.tolist():
        yield HealedPrompt([*prompt, token], 0, beyond[:0], scores[token, None])
    if len(beyond):
        left = apply_filters(scores[None], sampler.penalties, History(torch.tensor([prompt]), len(prompt)))[0]
        yield HealedPrompt(prompt, len(rest), beyond, left[beyond])


def choose_healed_prompt(
    covers: Sequence[HealedPrompt], sampler: Sampler, rng: random.Random
) -> tuple[HealedPrompt, int | None]:
    """Choose a cover as the sampler chooses tokens; and the token that goes beyond the prompt, if one does.

    Raises:
        UsageError: the sampler rules out every cover.
    """
    scores = apply_filters(torch.cat([cover.scores for cover in covers])[None], sampler.truncations, _NO_HISTORY)
    place = int(scores.argmax()) if sampler.greedy else int(draw(scores.softmax(-1), [rng]))
    if place == NO_TOKEN_LEFT:
        raise no_token_left()
    for cover in covers:
        if place < len(cover.scores):
            return cover, int(cover.tokens[place]) if len(cover.tokens) else None
        place -= len(cover.scores)
    raise AssertionError("there is one score for each cover")


def text_after_overlap(tokenizer: Tokenizer, token: int, overlap: int) -> str:
    """The characters that are complete in a token behind its first `overlap` bytes."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(tokenizer.token_bytes(token)[overlap:])
