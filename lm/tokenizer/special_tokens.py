"""The tokens around a text as a model reads it: those that start and end it, and the one that asks for a language.

Training, scoring and decoding take them from here, so that none of them frames a text otherwise than the others:

    prompt     start, prompt
    example    start, prompt, completion, end
    source     language tag (of a model with several directions), source, end
    target     target, end; the decoder reads it after a start token, and a model without an encoder after its source
               and that token
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.config.tokenizer import MASK
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer


class LanguageTag(NamedTuple):
    """The special token that asks for a translation into a language.

    Attributes:
        language: its code, such as `de`.
        token: the token as the vocabulary spells it.
        id: of the token.
    """

    language: str
    token: str
    id: int


def format_language_tag(language: str) -> str:
    """The tag of a language, as the vocabulary spells it."""
    return f"<2{language}>"


def find_language_tags(tokenizer: Tokenizer) -> dict[str, LanguageTag]:
    """The tags among the special tokens of a tokenizer, by language."""
    named = ((re.fullmatch("<2(.+)>", token), index) for token, index in tokenizer.special_tokens.items())
    return {match[1]: LanguageTag(match[1], match[0], index) for match, index in named if match}


def choose_language_tag(
    tokenizer: Tokenizer, language: str | None, *, file_language: str | None = None, has_tags: bool = True
) -> LanguageTag | None:
    """The tag that asks for a language; None where the model has a single direction.

    Args:
        tokenizer: of the sources.
        language: what the user asks for.
        file_language: the language that the name of a file tells, for where the user asks for none. A model of a single
            direction ignores it.
        has_tags: whether the model reads the tags that its tokenizer has; one that was trained in a single direction
            with the tokenizer of another run has never seen them.

    Raises:
        UsageError: the model has several directions and none is asked for, or it does not have the one that is.
    """
    tags = find_language_tags(tokenizer) if has_tags else {}
    known = f"this model translates into {', '.join(sorted(tags))}" if tags else "this model has one direction"
    if language is None and tags and file_language not in tags:
        wrong = "" if file_language is None else f", not into {file_language!r}"
        raise UsageError(f"{known}{wrong}; say into which", settings=["to"])
    if language is not None and language not in tags:
        raise UsageError(f"{known}, not {language!r}", settings=["to"])
    return tags.get(language or file_language or "")


@dataclass(frozen=True, slots=True)
class SpecialTokenFrame:
    """The tokens around a text.

    Attributes:
        before: ids that come before it.
        after: ids that come after it.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        """How many tokens the frame adds to a text."""
        return len(self.before) + len(self.after)

    def wrap(self, *texts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """(tokens,) ids: the frame around the ids of texts that follow each other."""
        return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (self.before, *texts, self.after)])


@dataclass(frozen=True, slots=True)
class PairSpecialTokens:
    """The tokens around a source and its target.

    Attributes:
        source: around what the encoder reads.
        target: around what the decoder is to predict.
        start: the id that the decoder reads first; what it predicts after it is the target's first token.
    """

    source: SpecialTokenFrame
    target: SpecialTokenFrame
    start: int


def build_text_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """The start and end tokens of a text, so far as the tokenizer has them."""
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    return SpecialTokenFrame(() if start is None else (start,), () if end is None else (end,))


def build_example_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """The tokens before a prompt and after its completion.

    Raises:
        UsageError: the tokenizer has no token that ends a text.
    """
    frame = build_text_frame(tokenizer)
    if not frame.after:  # nor is there a start then
        raise UsageError(
            "the tokenizer has no end-of-text token, so no completion could end; use one that has",
            settings=["special='<|endoftext|>'"],
        )
    return frame


def build_pair_frames(
    tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None, *, tag: LanguageTag | None = None
) -> PairSpecialTokens:
    """The tokens around a source and around its target.

    Args:
        tokenizer: of the targets; of both sides, if there is no other.
        source_tokenizer: of the sources, where they have their own.
        tag: asks for the language of the target, in a model with several directions.

    Raises:
        UsageError: a tokenizer has no token that ends a text.
    """
    target, source = build_text_frame(tokenizer), build_text_frame(source_tokenizer or tokenizer)
    if not target.before or not target.after or not source.after:
        raise UsageError("the tokenizer has no token that ends a text, which an encoder-decoder needs")
    before = () if tag is None else (tag.id,)
    return PairSpecialTokens(
        SpecialTokenFrame(before, source.after), SpecialTokenFrame((), target.after), target.before[0]
    )


def require_mask_token(tokenizer: Tokenizer) -> int:
    """The mask of a tokenizer; UsageError if it has none."""
    if tokenizer.mask is None:
        raise UsageError(
            f"the tokenizer has no {MASK} token, which a masked model needs; use one that has, or none, to have one "
            "trained",
            settings=[f"special='{MASK}'", "tokenizer"],
        )
    return tokenizer.mask
