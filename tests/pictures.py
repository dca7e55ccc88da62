"""The pictures of the README, drawn by the commands themselves: `python -m tests.pictures docs/pictures`.

A small model is trained on the stories and one on the pairs that ship, in a terminal of a fixed size whose screen is
then drawn by rich's own export; attention is drawn by `lm attention`. Training is caught in the middle.
"""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from corpora import path

WIDTH, HEIGHT = 100, 30
TRAINING = ("--preset", "tiny", "--steps", "700", "--seed", "1", "--evaluate-every", "100")
TRANSLATION = ("--preset", "translation-tiny", "--steps", "1200", "--seed", "1", "--evaluate-every", "0")
CAUGHT_AT = "step    500"
SURPRISING = "One morning Ella found a small key under the stairs. She put it into her banana and went to ask Grandpa."
SENTENCE, TRANSLATED = "The old farmer gives the child a red apple.", "Der alte Bauer gibt dem Kind einen roten Apfel."

_PAPER, _INK = (250, 250, 247), (40, 40, 38)
_THEME = TerminalTheme(
    _PAPER, _INK,
    [(40, 40, 38), (176, 54, 40), (40, 120, 60), (150, 110, 0), (30, 100, 170), (140, 60, 140), (0, 120, 130), (110, 110, 105)],
)  # fmt: skip
_CONTROL = re.compile(r"\x1b\[(\d*)A|\x1b\[(\d*)K|\x1b\[\?25[lh]|\r\n|\r|\n")


def draw(folder: Path) -> None:
    """Make all the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        writer, translator = Path(place, "stories"), Path(place, "german")
        training = ["train", str(path("stories/train.txt")), "-o", str(writer), *TRAINING]
        output = "".join(_run(training))
        caught = output[: output.index("\r", output.index(CAUGHT_AT) + 200)]
        _save(folder / "training.svg", "lm train corpora/stories/train.txt", _screen(caught))
        text = Path(place, "text.txt")
        text.write_text(SURPRISING + "\n", encoding="utf-8")
        shown = "".join(_run(["perplexity", str(writer), str(text), "--show"]))
        _save(folder / "surprisal.svg", "lm perplexity runs/stories text.txt --show", _screen(shown))
        sides = [str(path(f"parallel/train.{language}")) for language in ("en", "de")]
        for _ in _run(["train", "--source", sides[0], "--target", sides[1], "-o", str(translator), *TRANSLATION]):
            pass
        picture = folder / "attention.png"
        for _ in _run(["attention", str(translator), SENTENCE, "--target", TRANSLATED, "-o", str(picture)]):
            pass


def _run(arguments: Sequence[str]) -> Iterator[str]:
    """What a command writes to a terminal, as it comes; RuntimeError if it fails."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLORTERM")}
    command = [sys.executable, "-m", "cli.main", *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm-256color"}
    ) as process:
        os.close(theirs)
        decoded = b""
        while block := _read(ours):
            decoded += block
            text = decoded.decode(errors="ignore")
            decoded = decoded[len(text.encode()) :]
            yield text
    os.close(ours)
    if process.returncode:
        raise RuntimeError(f"lm {' '.join(arguments)} ended with exit code {process.returncode}")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody writes any more
        return b""


def _screen(output: str) -> list[str]:
    """The lines that a terminal would show, colours kept: cursors that go up and lines that are erased are followed."""
    lines, row, start = [""], 0, 0
    for match in _CONTROL.finditer(output):
        lines[row] += output[start : match.start()]
        start = match.end()
        if match[1] is not None:
            row = max(0, row - int(match[1] or 1))
        elif match[2] is not None:
            lines[row] = ""
        elif match[0] == "\r" and output[start : start + 3] != "\x1b[2":
            lines[row] = ""
        elif match[0].endswith("\n"):
            row += 1
            lines += [""] * (row == len(lines))
    lines[row] += output[start:]
    return [line for line in lines if line]


def _save(file: Path, command: str, lines: Sequence[str]) -> None:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="256")
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    file.write_text(console.export_svg(title=f"$ {command}", theme=_THEME, unique_id=file.stem), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
