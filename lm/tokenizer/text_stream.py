"""Decoding ids one at a time: the pieces joined are the text of all ids decoded at once, and no character is split."""

from __future__ import annotations

import codecs
from typing import Any

import tokenizers

from lm.tokenizer.spelling import is_byte_level, spelled_byte, spelled_bytes


class TextStream:
    """A decoder that is fed one id at a time; `finish` gives what is left at the end.

    Byte-level tokenizers (GPT-2's, Llama 3's) are decoded a byte at a time, in constant time per id. For all others
    a window over the last few tokens is decoded again, so that whatever their decoder does between neighbours (spaces,
    prefixes) comes out right.
    """

    def __init__(self, backend: tokenizers.Tokenizer, description: dict[str, Any], *, skip_special: bool) -> None:
        """`description` is the tokenizer's JSON, parsed."""
        specials = {token["id"] for token in description["added_tokens"] if token["special"]}
        self._skipped = specials if skip_special else set()
        self._decoder: _ByteLevelDecoder | _WindowDecoder = (
            _ByteLevelDecoder(backend) if is_byte_level(description) else _WindowDecoder(backend)
        )

    def feed(self, index: int) -> str:
        """The text that is complete with this id; often empty."""
        return "" if index in self._skipped else self._decoder.feed(index)

    def finish(self) -> str:
        """The rest of the text, as if the ids ended here; the stream starts anew after it."""
        return self._decoder.finish()


class _ByteLevelDecoder:
    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, index: int) -> str:
        token: str | None = self._backend.id_to_token(index)
        return "" if token is None else self._characters.decode(spelled_bytes(token))

    def finish(self) -> str:
        rest = self._characters.decode(b"", final=True)
        self._characters.reset()
        return rest


class _WindowDecoder:
    """Text of `ids[start:]` less text of `ids[start:end]`, which was given out before.

    After the method of Hugging Face's text-generation-inference (`decode_token`).
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._ids: list[int] = []
        self._end = 0

    def feed(self, index: int) -> str:
        token: str | None = self._backend.id_to_token(index)
        if token is None:
            return ""
        self._ids.append(index)
        # Byte tokens are decoded together as one run: whether it is valid is known when it has ended.
        return "" if spelled_byte(token) is not None else self._new_text()

    def finish(self) -> str:
        text = self._new_text()
        self._ids, self._end = [], 0
        return text

    def _new_text(self) -> str:
        known = self._decode(self._ids[: self._end])
        text = self._decode(self._ids)
        if len(text) <= len(known):
            return ""
        self._ids, self._end = self._ids[self._end :], len(self._ids) - self._end
        return text[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text
