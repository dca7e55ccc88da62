"""`lm demo`: train and use small models on bundled corpora, by the commands a user would type."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from cli.console.text import quote
from cli.options import RunCommand
from lm.errors import UsageError
from lm.run_folder import refuse_existing

_STORIES_BUDGET, _TRANSLATION_BUDGET = "80s", "110s"
_SHOWN_PAIR = 0


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the run.")] = Path("runs/demo"),
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="Optimizer steps of each training. [default: as time allows]", min=1),
    ] = None,
) -> None:
    """Train two small models on bundled corpora: about four minutes.

    The first model generates text; the second, in the folder FOLDER-german, translates. Both are trained for a fixed
    time, so their quality depends on the speed of the machine. Each command is shown before it runs.
    """
    if not out.name:
        raise UsageError(f"{out}: name a new folder; the second model gets the same name and -german (-o)")
    german = out.with_name(out.name + "-german")
    for folder in (out, german):
        refuse_existing(folder)
    _write_stories(context.obj.run, out, steps)
    _translate_sentences(context.obj.run, german, steps)
    _print_text(
        "Your turn: use any text file, or two whose lines are translations. (After make demo, lm is .venv/bin/lm.)"
    )
    for command in (
        f'lm generate {quote(out)} "Your own beginning" --temperature 1.0 -n 3',
        "lm train my-book.txt -o runs/mine",
        "lm train --resume runs/mine --steps 3000",
        "lm perplexity runs/mine another-book.txt",
        "lm train --source my.en --target my.de -o runs/translator",
        "lm train --help",
    ):
        print(f"  $ {command}")


def _write_stories(run_command: RunCommand, out: Path, steps: int | None) -> None:
    import corpora

    stories, held_out = corpora.path("stories/train.txt"), corpora.path("stories/heldout.txt")
    _print_text(
        "A language model learns from text alone. A megabyte of short stories ships with lm. One command trains a BPE "
        "tokenizer, tokenizes the stories and trains a transformer to predict the next token, sized for this machine "
        "and the time budget. A tenth of the stories is held out for evaluation."
    )
    _run(run_command, "train", str(stories), "-o", str(out), *_length_flags(steps, _STORIES_BUDGET))
    _print_text(
        "How well does it predict other stories, with new combinations of people and things? A perplexity of 2 is the "
        "uncertainty of a coin toss per token. (Windows overlap here, so each token has more context than in the "
        "evaluations above, and the perplexity is lower.)"
    )
    _run(run_command, "perplexity", str(out), str(held_out))
    _print_text(
        "Now it generates. After little more than a minute of training the style is right, the content not yet. The "
        "seed makes the sample reproducible; a higher temperature makes it more diverse."
    )
    _run(run_command, "generate", str(out), "One morning", "--max-tokens", "160", "--temperature", "0.7", "--seed", "1")
    _run(run_command, "generate", str(out), "The little", "--max-tokens", "100", "--temperature", "0")
    _print_text("What was trained, and at what cost?")
    _run(run_command, "info", str(out))


def _translate_sentences(run_command: RunCommand, out: Path, steps: int | None) -> None:
    import corpora

    train, held_out = (
        [str(corpora.path(f"parallel/{split}.{language}")) for language in ("en", "de")]
        for split in ("train", "heldout")
    )
    _print_text(
        "The same blocks translate: an encoder reads English, and a decoder writes German and attends to the encoder "
        "output. 20,000 sentence pairs ship with lm, and held-out pairs that combine words in new ways."
    )
    size = [] if steps is None else ["--preset", "translation-tiny"]
    _run(
        run_command,
        "train",
        "--source",
        train[0],
        "--target",
        train[1],
        "-o",
        str(out),
        *size,
        *_length_flags(steps, _TRANSLATION_BUDGET),
    )
    _print_text("How many of the 1,000 held-out translations match the reference exactly?")
    _run(run_command, "evaluate", str(out), "--source", held_out[0], "--target", held_out[1])
    _print_text("Which English words does each German word attend to?")
    sentence, translation = (Path(path).read_text(encoding="utf-8").splitlines()[_SHOWN_PAIR] for path in held_out)
    _run(run_command, "attention", str(out), sentence, "--target", translation)


def _length_flags(steps: int | None, budget: str) -> list[str]:
    return ["--budget", budget] if steps is None else ["--steps", str(steps)]


def _print_text(text: str) -> None:
    print("\n" + textwrap.fill(text, min(100, shutil.get_terminal_size((100, 24)).columns)) + "\n", flush=True)


def _run(run_command: RunCommand, *arguments: str) -> None:
    """Print a command and run it; stop the demo if it fails."""
    print(f"$ lm {shlex.join(arguments)}", flush=True)
    if code := run_command(arguments):
        raise typer.Exit(code)
