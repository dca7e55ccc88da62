"""`lm demo`: the whole story on the corpus that ships, as the commands a person would type."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the run it makes.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Optimizer steps to train for.", min=1)] = 700,
) -> None:
    """Train a small model on the stories that ship with lm, sample from it and measure it: about two minutes.

    Every command is shown before it runs, so that it can be typed again by hand.
    """
    import corpora
    from lm.checkpoint import refuse_existing

    refuse_existing(out)
    stories, held_out = corpora.path("stories/train.txt"), corpora.path("stories/heldout.txt")
    _say(
        "lm learns to write from text alone. A megabyte of little stories ships with it. One command makes a "
        "vocabulary of byte pairs, turns the stories into tokens and trains a small transformer to predict each "
        "next token; a tenth of the stories is held out to see how well it does."
    )
    _run("train", str(stories), "-o", str(out), "--steps", str(steps))
    _say(
        "How well does it predict other stories, about things and people it has never seen together? A perplexity of "
        "2 means: as unsure as if each token were the toss of a coin. (Windows overlap here, so every token sees "
        "more of its story than in the evaluations above, and the figure is lower.)"
    )
    _run("perplexity", str(out), str(held_out))
    _say(
        "Now it writes: a minute of training gives the manner, not yet the sense. The seed makes the sample "
        "repeatable; a higher temperature makes it bolder."
    )
    _run("generate", str(out), "One morning", "--max-tokens", "160", "--temperature", "0.7", "--seed", "1")
    _run("generate", str(out), "The little", "--max-tokens", "100", "--greedy")
    _say("What was trained, and what did it cost?")
    _run("info", str(out))
    _say("Your turn: any text file will do. (After make demo, lm is .venv/bin/lm.)")
    for command in (
        f'lm generate {out} "Your own beginning" --temperature 1.0 -n 3',
        "lm train my-book.txt -o runs/mine",
        "lm train --resume runs/mine --steps 3000",
        "lm perplexity runs/mine another-book.txt",
        "lm train --help",
    ):
        print(f"  $ {command}")


def _say(text: str) -> None:
    import shutil
    import textwrap

    print("\n" + textwrap.fill(text, min(100, shutil.get_terminal_size((100, 24)).columns)) + "\n", flush=True)


def _run(*arguments: str) -> None:
    """Show a command and run it as the terminal would; stop the demo if it fails."""
    from cli.main import run

    print(f"$ lm {shlex.join(arguments)}", flush=True)
    if code := run(arguments):
        raise typer.Exit(code)
