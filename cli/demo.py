"""`lm demo`: train and use small models on the corpora that ship, by the commands a user would type."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from cli.flags.options import Run
from lm.errors import UsageError
from lm.run_folder import refuse_existing

_FOR_STORIES, _FOR_SENTENCES = "80s", "110s"
_SHOWN_PAIR = 0


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the run.")] = Path("runs/demo"),
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help="Optimizer steps of each training. [default: as time allows]",
            min=1,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train two small models on bundled corpora: about four minutes.

    The first model writes; the second, in the folder FOLDER-german, translates. Both are trained for a fixed time, so
    how good they become depends on how fast the machine is. Every command is shown before it runs, so that it can be
    typed again by hand.
    """
    if not out.name:
        raise UsageError(f"{out}: name a new folder; the second model gets the same name and -german (-o)")
    german = out.with_name(out.name + "-german")
    for folder in (out, german):
        refuse_existing(folder)
    _write_stories(context.obj.run, out, steps)
    _translate_sentences(context.obj.run, german, steps)
    _print_text(
        "Your turn: any text file will do, or any two whose lines belong together. (After make demo, lm is "
        ".venv/bin/lm.)"
    )
    for command in (
        f'lm generate {out} "Your own beginning" --temperature 1.0 -n 3',
        "lm train my-book.txt -o runs/mine",
        "lm train --resume runs/mine --steps 3000",
        "lm perplexity runs/mine another-book.txt",
        "lm train --source my.en --target my.de -o runs/translator",
        "lm train --help",
    ):
        print(f"  $ {command}")


def _write_stories(lm: Run, out: Path, steps: int | None) -> None:
    import corpora

    stories, held_out = corpora.path("stories/train.txt"), corpora.path("stories/heldout.txt")
    _print_text(
        "lm learns to write from text alone. A megabyte of little stories ships with it. One command makes a "
        "vocabulary of byte pairs, turns the stories into tokens and trains a transformer to predict each next token, "
        "as large a one as this machine can teach in the time it is given; a tenth of the stories is held out to see "
        "how well it does."
    )
    _run(lm, "train", str(stories), "-o", str(out), *_length_flags(steps, _FOR_STORIES))
    _print_text(
        "How well does it predict other stories, about things and people it has never seen together? A perplexity of "
        "2 means: as unsure as if each token were the toss of a coin. (Windows overlap here, so every token sees "
        "more of its story than in the evaluations above, and the figure is lower.)"
    )
    _run(lm, "perplexity", str(out), str(held_out))
    _print_text(
        "Now it writes: little more than a minute of training gives the manner, not yet the sense. The seed makes the "
        "sample repeatable; a higher temperature makes it bolder."
    )
    _run(lm, "generate", str(out), "One morning", "--max-tokens", "160", "--temperature", "0.7", "--seed", "1")
    _run(lm, "generate", str(out), "The little", "--max-tokens", "100", "--greedy")
    _print_text("What was trained, and what did it cost?")
    _run(lm, "info", str(out))


def _translate_sentences(lm: Run, out: Path, steps: int | None) -> None:
    import corpora

    train, held_out = (
        [str(corpora.path(f"parallel/{split}.{language}")) for language in ("en", "de")]
        for split in ("train", "heldout")
    )
    _print_text(
        "The same blocks make a translator: an encoder reads English, a decoder writes German and looks at what was "
        "read. 20,000 pairs of sentences ship with it, and others that join words which never stand together there."
    )
    size = [] if steps is None else ["--preset", "translation-tiny"]
    _run(
        lm,
        "train",
        "--source",
        train[0],
        "--target",
        train[1],
        "-o",
        str(out),
        *size,
        *_length_flags(steps, _FOR_SENTENCES),
    )
    _print_text("How many of the 1,000 held-out sentences come out right, letter by letter?")
    _run(lm, "evaluate", str(out), "--source", held_out[0], "--target", held_out[1])
    _print_text("And where does each German word look in the English sentence?")
    sentence, translation = (Path(path).read_text(encoding="utf-8").splitlines()[_SHOWN_PAIR] for path in held_out)
    _run(lm, "attention", str(out), sentence, "--target", translation)


def _length_flags(steps: int | None, budget: str) -> list[str]:
    return ["--budget", budget] if steps is None else ["--steps", str(steps)]


def _print_text(text: str) -> None:
    print("\n" + textwrap.fill(text, min(100, shutil.get_terminal_size((100, 24)).columns)) + "\n", flush=True)


def _run(lm: Run, *arguments: str) -> None:
    """Print a command and run it; stop the demo if it fails."""
    print(f"$ lm {shlex.join(arguments)}", flush=True)
    if code := lm(arguments):
        raise typer.Exit(code)
