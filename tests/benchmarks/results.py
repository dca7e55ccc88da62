"""The results of README.md and docs/ about quality, by the commands that a reader types.

    python -m tests.benchmarks.results --tinyshakespeare FILE --multi30k FOLDER [--seeds 3] [--threads 2]
    python -m tests.benchmarks.results --tinyshakespeare FILE --sizes --budgets 1m 10m --seeds 1

tinyshakespeare   `lm train` without other options than the time; `lm perplexity` of what it held out, which is the last
                  tenth, as nanoGPT splits it, in nats/character
--sizes           instead the last tenth after training on the first 20 kB, 400 kB and all of the rest, with a sample
Multi30k          `lm train --source --target` without other options than the time; `lm evaluate` on test2016

The machine should do nothing else. Prints Markdown to stdout, commands and samples to stderr. Speed: `make bench`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.comparison import Task, call_in_process
from tests.benchmarks.report import ROOT, describe_machine
from tests.benchmarks.runs import lm

SIZES = (20_000, 400_000)
COLUMNS = ("task", "mean (range)", "seeds", "threads", "wall time", "peak memory", "command")


class Work(NamedTuple):
    """What is trained (as `lm train` takes it), for which times, and what returns the score of a run."""

    task: str
    words: list[str]
    budgets: list[str]
    score: Callable[[str], float]


def shakespeare(corpus: Path, budgets: list[str], *, sizes: bool) -> Iterator[Work]:
    """Write the texts."""
    text = corpus.read_text(encoding="utf-8")
    end = len(text) * 9 // 10
    Path("last.txt").write_text(text[end:], encoding="utf-8")

    def score(run: str) -> float:
        if sizes:
            print(lm("generate", run, "ROMEO:", "--max-tokens", "100", "--seed", "1"), file=sys.stderr)
        total = json.loads(lm("perplexity", run, *["last.txt"] * sizes, "--json"))["total"]
        return float(total["nats"]) / total["bytes"]  # of ASCII

    lengths = {f"{size // 1000}kB.txt": size for size in SIZES} | {"rest.txt": end}
    for name, length in lengths.items() if sizes else [("tinyshakespeare.txt", len(text))]:
        Path(name).write_text(text[:length], encoding="utf-8")
        yield Work("tinyshakespeare, last tenth: nats/character", [name], budgets, score)


def multi30k(corpus: Path, budgets: list[str]) -> Work:
    """Copy the sentence pairs."""
    for part, language in (("train", "en"), ("train", "de"), ("test_2016_flickr", "en"), ("test_2016_flickr", "de")):
        shutil.copy(corpus / f"{part}.{language}", f"{part.partition('_')[0]}.{language}")

    def score(run: str) -> float:
        found = json.loads(lm("evaluate", run, "--source", "test.en", "--target", "test.de", "--json"))["scores"]
        return next(float(each["value"]) for each in found if each["metric"] == "BLEU")

    return Work("Multi30k, test2016: BLEU", ["--source", "train.en", "--target", "train.de"], budgets, score)


def measure(work: Work, budget: str, seeds: int, threads: int) -> str:
    """Train and score a run for each seed; return the row of the table."""
    words = [*work.words, "--budget", budget]
    scores, seconds, peaks = [], [], []
    for seed in map(str, range(1, seeds + 1)):
        run = f"runs/{len(list(Path().glob('runs/*')))}"
        print("$ lm train", *words, "--seed", seed, file=sys.stderr, flush=True)
        start = time.perf_counter()
        trained = subprocess.Popen([sys.executable, "-m", "cli", "train", *words, "--seed", seed, "-o", run])
        _, trained.returncode, used = os.wait4(trained.pid, 0)
        if trained.returncode:
            sys.exit("training failed")
        seconds.append(time.perf_counter() - start)
        peaks.append(used.ru_maxrss * 1024)
        scores.append(work.score(run))
    result = f"{statistics.mean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}) | {seeds} | {threads}"
    cost = f"{statistics.mean(seconds) / 60:.1f} minutes | {max(peaks) / 1e9:.1f} GB"
    return f"| {work.task} | {result} | {cost} | `lm train {' '.join(words)}` |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinyshakespeare", type=Path, metavar="FILE")
    parser.add_argument("--multi30k", type=Path, metavar="FOLDER", help="train and test_2016_flickr, .en and .de")
    parser.add_argument("--sizes", action="store_true", help="train on parts of the text too")
    parser.add_argument("--budgets", nargs="+", metavar="TIME", help="default: 5m 10m; 15m for translation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    texts, pairs = (path and path.absolute() for path in (given.tinyshakespeare, given.multi30k))
    print(describe_machine(instructions=call_in_process(Task("machine.describe"))["instructions"]), "", sep="\n")
    print(f"| {' | '.join(COLUMNS)} |", "|" + "-|" * len(COLUMNS), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": str(ROOT), "LM_CACHE": "cache", "LM_THREADS": str(given.threads)}
        lm("compile")  # as after `make install`
        work = [*shakespeare(texts, given.budgets or ["5m", "10m"], sizes=given.sizes)] if texts else []
        work += [multi30k(pairs, given.budgets or ["15m"])] if pairs else []
        for each in work:
            for budget in each.budgets:
                print(measure(each, budget, given.seeds, given.threads), flush=True)


if __name__ == "__main__":
    main()
