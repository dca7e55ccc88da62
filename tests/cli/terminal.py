"""A stream that says it is a terminal, and what a person would see on it."""

import io
import re

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What was written, without colours and movements; what is drawn again and again, each time."""
        return re.split(r"[\r\n]+", ESCAPES.sub("", self.getvalue()))
