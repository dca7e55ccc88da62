"""`lm demo`: train and use small models on bundled corpora, by the commands a user would type."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from lm.run_folder import refuse_existing

_SCRIPT = """
A language model learns from text alone. A megabyte of short stories ships with lm. One command trains a BPE
tokenizer, tokenizes the stories and trains a transformer to predict the next token, sized for this machine and the
time budget. A tenth of the stories is held out for evaluation.

$ train {corpora}/stories/train.txt -o {stories} {stories_length}

How well does it predict other stories, with new combinations of people and things? A perplexity of 2 is the
uncertainty of a coin toss per token. (Windows overlap here, so each token has more context than in the evaluations
above, and the perplexity is lower.)

$ perplexity {stories} {corpora}/stories/heldout.txt

Now it generates. After little more than a minute of training the style is right, the content not yet. The seed makes
the sample reproducible; a higher temperature makes it more diverse.

$ generate {stories} "One morning" --max-tokens 160 --temperature 0.7 --seed 1

$ generate {stories} "The little" --max-tokens 100 --temperature 0

What was trained, and at what cost?

$ info {stories}

The same blocks translate: an encoder reads English, and a decoder writes German and attends to the encoder output.
20,000 sentence pairs ship with lm, and held-out pairs that combine words in new ways.

$ train --source {corpora}/parallel/train.en --target {corpora}/parallel/train.de -o {german} {german_length}

How many of the 1,000 held-out translations match the reference exactly?

$ evaluate {german} --source {corpora}/parallel/heldout.en --target {corpora}/parallel/heldout.de

Which English words does each German word attend to?

$ attention {german} {sentence} --target {translation}
"""
_YOUR_TURN = """
Your turn: use any text file, or two whose lines are translations. (After make demo, lm is .venv/bin/lm.)

  $ lm generate {stories} "Your own beginning" --temperature 1.0 -n 3
  $ lm train my-book.txt -o runs/mine
  $ lm train --resume runs/mine --steps 3000
  $ lm perplexity {stories} another-book.txt
  $ lm train --source my.en --target my.de -o runs/translator
  $ lm train --help"""


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
    import corpora

    german = Path(f"{out}-german")
    for folder in (out, german):
        refuse_existing(folder)
    texts = [corpora.path(f"parallel/heldout.{language}").read_text(encoding="utf-8") for language in ("en", "de")]
    sentence, translation = (text.partition("\n")[0] for text in texts)
    words = {
        "corpora": corpora.path("stories").parent, "stories": out, "german": german,
        "sentence": sentence, "translation": translation,
    }  # fmt: skip
    words = {name: shlex.quote(str(word)) for name, word in words.items()}
    words["stories_length"] = "--budget 80s" if steps is None else f"--steps {steps}"
    words["german_length"] = "--budget 110s" if steps is None else f"--preset translation-tiny --steps {steps}"
    for block in _SCRIPT.strip().split("\n\n"):
        if block.startswith("$ "):
            arguments = shlex.split(block[2:].format(**words))
            print(f"$ lm {shlex.join(arguments)}", flush=True)
            if code := context.obj.run(arguments):
                raise typer.Exit(code)
        else:
            print("\n" + textwrap.fill(block, min(100, shutil.get_terminal_size((100, 24)).columns)) + "\n", flush=True)
    print(_YOUR_TURN.format(**words))
