"""Special tokens around a text: start, end, language tags and the mask.

Training, scoring and decoding all use these, so that they agree:

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

from lm.config.run_config import MASK
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer


class LanguageTag(NamedTuple):
    """The special token that requests a target language.

    Attributes:
        language: its code, such as `de`.
        token: as spelled in the vocabulary.
        id: its token ID.
    """

    language: str
    token: str
    id: int


def format_language_tag(language: str) -> str:
    """Return the special token of a language, such as `<2de>`."""
    return f"<2{language}>"


def find_language_tags(tokenizer: Tokenizer) -> dict[str, LanguageTag]:
    """Return the language tags of a tokenizer, by language."""
    return {
        match[1]: LanguageTag(match[1], token, index)
        for token, index in tokenizer.special_tokens.items()
        if (match := re.fullmatch("<2(.+)>", token))
    }


def choose_language_tag(
    tokenizer: Tokenizer, language: str | None, *, file_language: str | None = None, has_tags: bool = True
) -> LanguageTag | None:
    """Return the tag of a target language; None if the model has a single direction.

    Args:
        file_language: the language in a file name, used if none is requested. Ignored with a single direction.
        has_tags: whether the model was trained with the tags of its tokenizer; one trained in a single direction with
            the tokenizer of another run was not.

    Raises:
        UsageError: the model has several directions and none is requested, or not the requested one.
    """
    tags = find_language_tags(tokenizer) if has_tags else {}
    language = language or (file_language if tags else None)
    if not (tags or language):
        return None
    if language not in tags:
        raise UsageError(f"this model translates into {', '.join(sorted(tags)) or 'one language'}, not {language!r}")
    return tags[language]


@dataclass(frozen=True, slots=True)
class SpecialTokenFrame:
    """The special tokens around a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def wrap(self, *texts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Concatenate texts and add the special tokens: (tokens,) IDs."""
        return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (self.before, *texts, self.after)])


class PairSpecialTokens(NamedTuple):
    """The special tokens around a source and its target.

    Attributes:
        source: around the encoder input.
        target: around what the decoder predicts.
        start: the first decoder input.
    """

    source: SpecialTokenFrame
    target: SpecialTokenFrame
    start: int


def build_text_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """Return the start and end tokens of a text, as far as the tokenizer has them."""
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    return SpecialTokenFrame(() if start is None else (start,), () if end is None else (end,))


def build_example_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """Return the special tokens before a prompt and after its completion.

    Raises:
        UsageError: the tokenizer has no end token.
    """
    frame = build_text_frame(tokenizer)
    if not frame.after:
        raise UsageError("the tokenizer has no end-of-text token, which completions and translations need")
    return frame


def build_pair_frames(
    tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None, *, tag: LanguageTag | None = None
) -> PairSpecialTokens:
    """Return the special tokens around a source and its target.

    Args:
        tokenizer: of the targets; of the sources too, unless they have their own.
        source_tokenizer: of the sources, if separate.
        tag: requests the target language, in a model with several directions.

    Raises:
        UsageError: a tokenizer has no end token.
    """
    target, source = build_example_frame(tokenizer), build_example_frame(source_tokenizer or tokenizer)
    before = () if tag is None else (tag.id,)
    return PairSpecialTokens(
        SpecialTokenFrame(before, source.after), SpecialTokenFrame((), target.after), target.before[0]
    )


def require_mask_token(tokenizer: Tokenizer) -> int:
    """Return the mask token; UsageError if there is none."""
    if tokenizer.mask is None:
        raise UsageError(f"the tokenizer has no {MASK} token, which a masked model needs")
    return tokenizer.mask
