"""The pictures of README and docs, drawn by the commands themselves: `python -m tests.pictures docs/pictures FILE`.

FILE is tinyshakespeare [default: where `lm corpus get tinyshakespeare` puts it]. Models are trained on it, and on the
stories and pairs that ship, in a terminal of a fixed size whose screen is then drawn by rich's own export; attention is
drawn by `lm attention`, and the page of `lm serve` by Chromium. Of what `lm train` writes, a few lines are shown.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from corpora import path
from tests.benchmarks.__main__ import CORPUS_PLACES

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 100, 30
TRAINING = ("--budget", "2m", "--seed", "1")
TRANSLATION = ("--preset", "translation-tiny", "--steps", "1200", "--seed", "1", "--evaluate-every", "0")
SHAKESPEARE = ("tinyshakespeare.txt", "-o", "runs/shakespeare", "--budget", "5m")
PLAN = re.compile("vocabulary |model |length ")
EVALUATION = re.compile("step .* validation loss")
SAMPLE = ("runs/shakespeare", "ROMEO:", "--seed", "1")
SHOWN_LINES = 14
SHOWN_CHARACTERS = 700
SCORED = "ROMEO:\nI will not go to bed before the moon, my lord.\n\nJULIET:\nThe nurse has sold her second telephone.\n"
SURPRISING = " sold"
PAGE = {"width": 960, "height": 800}
SENTENCE, TRANSLATED = "The old farmer gives the child a red apple.", "Der alte Bauer gibt dem Kind einen roten Apfel."

_PAPER, _INK = (250, 250, 247), (40, 40, 38)
_THEME = TerminalTheme(
    _PAPER, _INK,
    [(40, 40, 38), (176, 54, 40), (40, 120, 60), (150, 110, 0),
     (30, 100, 170), (140, 60, 140), (0, 120, 130), (110, 110, 105)],
)  # fmt: skip
_FONT_TO_FETCH = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[(\d*)A|\x1b\[(\d*)K|\x1b\[\?25[lh]|\r\n|\r|\n")


def draw(folder: Path, shakespeare: Path) -> None:
    """Make all the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        terminal = _Terminal(Path(place))
        _draw_training(terminal, shakespeare, folder / "training.svg")
        _draw_page(terminal, folder / "web.png")
        _draw_surprisal(terminal, folder / "surprisal.svg")
        _draw_attention(terminal, folder.resolve() / "attention.png")


def _draw_training(terminal: _Terminal, shakespeare: Path, file: Path) -> None:
    """Training on tinyshakespeare and a sample: the first lines of it."""
    shutil.copy(shakespeare, terminal.folder / SHAKESPEARE[0])
    trained = {Text.from_ansi(line).plain: line for line in screen(terminal.run("train", *SHAKESPEARE))}
    plan, evaluations, done = (
        [line for plain, line in trained.items() if pattern.match(plain)]
        for pattern in (PLAN, EVALUATION, re.compile("done "))
    )
    command = f'$ lm generate {SAMPLE[0]} "{SAMPLE[1]}"'
    sample = [line for line in terminal.run("generate", *SAMPLE).splitlines() if not line.startswith("note ")]
    shown = [*plan, evaluations[0], evaluations[-1], *done, command, *sample]
    _save(file, f"lm train {' '.join(SHAKESPEARE)}", shown[:SHOWN_LINES])


def _draw_page(terminal: _Terminal, file: Path) -> None:
    """The view of the page of `lm serve` that colours a text by its surprisal, at the first surprising word."""
    from playwright.sync_api import sync_playwright

    from tests.lm.serving.conftest import served
    from tests.lm.serving.test_web import CHROMIUM

    with served(terminal.folder / SAMPLE[0]) as server, sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=CHROMIUM).new_page(viewport=PAGE)
        page.goto(f"{server.url}/#score")
        editor = page.get_by_label("Text to score")
        with page.expect_response("**/score"):
            editor.fill(SCORED)
        editor.evaluate("(area, place) => area.setSelectionRange(place, place)", SCORED.index(SURPRISING) + 1)
        editor.press("ArrowRight")
        page.locator(".alternatives tbody tr").first.wait_for()
        page.screenshot(path=file)


def _draw_surprisal(terminal: _Terminal, file: Path) -> None:
    """A story that the model has not seen, coloured by what surprises it."""
    terminal.run("train", str(path("stories/train.txt")), "-o", "runs/stories", *TRAINING)
    story = path("stories/heldout.txt").read_text(encoding="utf-8")[:SHOWN_CHARACTERS].rpartition(".")[0] + ".\n"
    (terminal.folder / "story.txt").write_text(story, encoding="utf-8")
    shown = terminal.run("perplexity", "runs/stories", "story.txt", "--show")
    _save(file, "lm perplexity runs/stories story.txt --show", screen(shown))


def _draw_attention(terminal: _Terminal, file: Path) -> None:
    """Where the words of a translation look in their source."""
    source, target = (str(path(f"parallel/train.{language}")) for language in ("en", "de"))
    terminal.run("train", "--source", source, "--target", target, "-o", "runs/german", *TRANSLATION)
    terminal.run("attention", "runs/german", SENTENCE, "--target", TRANSLATED, "-o", str(file))


class _Terminal:
    """A terminal of a fixed size, in a folder of its own, so that no name of this machine is in a picture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str) -> str:
        """What a command of `lm` writes to the terminal; RuntimeError if it fails."""
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLORTERM")}
        environment |= {"TERM": "xterm-256color", "LM_CACHE": "cache", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "cli.main", *arguments]
        written = b""
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=self.folder
        ) as process:
            os.close(theirs)
            while block := _read(ours):
                written += block
        os.close(ours)
        if process.returncode:
            raise RuntimeError(f"lm {' '.join(arguments)} ended with exit code {process.returncode}")
        return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody writes any more
        return b""


def screen(output: str) -> list[str]:
    """The lines that a terminal would show, colours kept: cursors that go up and lines that are erased are followed."""
    lines, row, start = [""], 0, 0
    for match in _CONTROL.finditer(output):
        lines[row] += output[start : match.start()]
        start = match.end()
        if match[1] is not None:
            row = max(0, row - int(match[1] or 1))
        elif match[2] is not None or (match[0] == "\r" and output[start : start + 3] != "\x1b[2"):
            lines[row] = ""
        elif match[0].endswith("\n"):
            row += 1
            lines += [""] * (row == len(lines))
    lines[row] += output[start:]
    return [line for line in lines if line]


def _save(file: Path, command: str, lines: Sequence[str]) -> None:
    """Draw a screen under the command that wrote it."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="256")
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    drawn = console.export_svg(title=f"$ {command}", theme=_THEME, unique_id=file.stem)
    file.write_text(_FONT_TO_FETCH.sub("", drawn), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path((*sys.argv[2:], *CORPUS_PLACES)[0]))
