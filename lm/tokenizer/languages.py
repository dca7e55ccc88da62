"""The languages a translation model can be asked for: each has a special token, its tag, such as `<2de>`.

The tag stands before the source. A model of a single direction has no tags.

Source: Johnson et al. 2017, section 3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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


def spelled_tag(language: str) -> str:
    """The tag of a language, as the vocabulary spells it."""
    return f"<2{language}>"


def language_tags(tokenizer: Tokenizer) -> dict[str, LanguageTag]:
    """The tags among the special tokens of a tokenizer, by language."""
    named = ((re.fullmatch("<2(.+)>", token), index) for token, index in tokenizer.special_tokens.items())
    return {match[1]: LanguageTag(match[1], match[0], index) for match, index in named if match}


def tag_to(
    tokenizer: Tokenizer, language: str | None, *, told_by_file: str | None = None, has_tags: bool = True
) -> LanguageTag | None:
    """The tag that asks for a language; None where the model has a single direction.

    Args:
        tokenizer: of the sources.
        language: what the user asks for.
        told_by_file: the language that the name of a file tells, for where the user asks for none. A model of a single
            direction ignores it.
        has_tags: whether the model reads the tags that its tokenizer has; one that was trained in a single direction
            with the tokenizer of another run has never seen them.

    Raises:
        UsageError: the model has several directions and none is asked for, or it does not have the one that is.
    """
    tags = language_tags(tokenizer) if has_tags else {}
    known = f"this model translates into {', '.join(sorted(tags))}" if tags else "this model has one direction"
    if language is None and tags and told_by_file not in tags:
        wrong = "" if told_by_file is None else f", not into {told_by_file!r}"
        raise UsageError(f"{known}{wrong}; say into which", settings=["to"])
    if language is not None and language not in tags:
        raise UsageError(f"{known}, not {language!r}", settings=["to"])
    return tags.get(language or told_by_file or "")
