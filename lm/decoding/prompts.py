"""What a model continues: a prompt, or a context with more text, as ids; and many prompts, in a good order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from lm.errors import UsageError
from lm.text.prompts import Prompt
from lm.tokenizer.framing import text_frame
from lm.tokenizer.tokenizer import Tokenizer


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's ids, after the document-start token if the tokenizer has one.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: there is neither a prompt nor a start token to begin from.
    """
    ids = [*text_frame(tokenizer).before, *tokenizer.encode(prompt)]
    if not ids:
        raise UsageError("there is nothing to begin from: this tokenizer has no document-start token; give a prompt")
    return ids


def prolonged(tokenizer: Tokenizer, context: Sequence[int], text: str) -> list[int]:
    """The ids of a context with a text put after it; after a document that has ended the text begins a new one.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: there is neither a context nor a text nor a start token to begin from.
    """
    if not context:
        return prompt_ids(tokenizer, text)
    frame = text_frame(tokenizer)
    is_ended = context[-1] in frame.after
    # In GPT-2's manner one token both ends a document and starts the next.
    start = [token for token in frame.before if is_ended and token != context[-1]]
    return [*context, *start, *tokenizer.encode(text)]


_AT_ONCE = 4096
"""Prompts that are put in order of length together; results wait for the last of them at most."""


def by_length(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """Prompts of like length one after the other, the shortest first; some are read ahead."""
    waiting = iter(prompts)
    while some := list(itertools.islice(waiting, _AT_ONCE)):
        yield from sorted(some, key=lambda prompt: len(prompt.text))


def shared_beginning(texts: Sequence[str]) -> str:
    """The words with which all of some texts begin, and go on with others.

    The white space after them is no part of it: it may belong to the next token.
    """
    if len(texts) < 2:
        return ""
    first, last = min(texts), max(texts)  # what they share, all that lie between them do
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    common = "".join(character for character, _ in alike)
    return common[: max(0, *(common.rfind(space) for space in " \n\t"))].rstrip()
