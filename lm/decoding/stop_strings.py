"""Text that ends before the first stop string, and never shows the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence

from lm.tokenizer.text_stream import TextStream


class TextUntil:
    """The text of one sample as its tokens come, up to the first of some strings.

    The string that is complete first ends the text, of two that end together the longer one; so the text is the same
    however it is cut into tokens.

    Attributes:
        stopped: whether a stop string was found; nothing comes after it.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str] = ()) -> None:
        """`stops` are not empty strings."""
        self.stopped = False
        self._stream, self._stops = stream, tuple(stops)
        self._held = ""  # the end of the text, where it may be the beginning of a stop string

    def feed(self, token: int) -> str:
        """The text that is certain now that this token is known; often empty."""
        return self._advance(self._stream.feed(token))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        certain = self._advance(self._stream.finish())
        rest, self._held = self._held, ""
        return certain + rest

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        certain = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the longest beginning of a string, short of all of it."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))
