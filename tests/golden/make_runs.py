"""Write a tiny run of every kind by a commit, for the tests that later commits decode and score alike.

    python -m tests.golden.make_runs [--base COMMIT]    writes tests/golden/runs

The tasks are so regular that a model of 16 dimensions memorises them: each greedy token must be far likelier than
the second, so that no rounding changes it. `expected.json` holds the tokens and the perplexities. Paths are relative to
the folder of runs, and nothing else in it depends on the machine.
"""

import argparse
import hashlib
import json
import math
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.compare import BASE, Tree, extracted

RUNS = Path(__file__).parent / "runs"
LEAST_MARGIN = 0.3
"""Nats between the best and the second token: hundreds of times what rounding explains."""
MOST_BYTES = 1_500_000
_LOGGED = 4
"""Last entries of each log that are kept."""

_NUMBERS = ("one", "two", "three", "four", "five", "six")
_GERMAN = dict(zip(_NUMBERS, ("eins", "zwei", "drei", "vier", "fünf", "sechs"), strict=True))
_SHAPE = "--d-model 16 --n-layers 1 --n-heads 2 --context 24 --batch-size 16 --kind char"
_TEXT = f"counting.txt --preset tiny {_SHAPE}"
_PAIRS = (
    "--source numbers.en --target numbers.de --preset translation-tiny --d-model 16 --n-layers 1 --n-heads 2 --d-ff 32 "
    "--context 48 --batch-tokens 600 --kind byte --dropout 0 --ema 0 --label-smoothing 0 --best-by loss"
)
_TWO_STACKS = f"{_PAIRS} --n-encoder-layers 1"


@dataclass(frozen=True)
class Kind:
    """A run to be made: flags of `lm train`, its steps, and the command that shows what it has learned."""

    train: str
    steps: int
    use: str
    score: str = "counting.txt"


_GENERATE = "generate {run} 'two three' --greedy --max-tokens 24 --top-alternatives 2"
_TRANSLATE = "translate {run} held-out.en --beam 1"
_PAIR_SCORE = "--source held-out.en --target held-out.de"
_FILL = "fill {run} 'one t[MASK]o three f[MASK]ur' --top-k 2"
_CLASSIFY = "classify {run} labels.jsonl"
_MASKED_SCORE = "counting-short.txt --score-every 5"
KINDS: Mapping[str, Kind] = {
    "gpt": Kind(_TEXT, 150, _GENERATE),
    "gpt2": Kind(_TEXT.replace("tiny", "gpt2") + " --learning-rate 1e-2 --warmup-steps 20 --dropout 0", 250, _GENERATE),
    "llama": Kind(
        _TEXT.replace("tiny", "llama-15m") + " --learning-rate 1e-2 --warmup-steps 20 --d-ff 32", 250, _GENERATE
    ),
    "experts": Kind(_TEXT + " --experts 2 --expert-capacity 2", 150, _GENERATE),
    "lstm": Kind(
        _TEXT.replace(" --n-heads 2", "") + " --architecture lstm --learning-rate 1e-2", 250, _GENERATE
    ),
    "window": Kind(_TEXT + " --attention window --attention-window 16", 150, _GENERATE),
    "bigbird": Kind(
        _TEXT + " --attention bigbird --attention-block 3 --global-blocks 1 --random-blocks 1", 150, _GENERATE
    ),
    "compressed": Kind(
        _TEXT + " --attention compressed --attention-block 16 --attention-stride 2 --n-layers 2", 150, _GENERATE
    ),
    "masked": Kind(_TEXT + " --objective masked", 400, _FILL, _MASKED_SCORE),
    "linformer": Kind(
        _TEXT + " --objective masked --attention linformer --attention-rank 12", 1000, _FILL, _MASKED_SCORE
    ),
    "questions": Kind(
        f"questions.jsonl --supervised --preset tiny {_SHAPE}", 250,
        "generate {run} 'after two comes ' --greedy --max-tokens 8 --top-alternatives 2", "questions.jsonl",
    ),
    "classifier": Kind(
        "labels.jsonl --supervised --from masked --batch-size 16 --learning-rate 1e-2", 100, _CLASSIFY, ""
    ),
    "lora": Kind("backwards.txt --from gpt --lora 4 --batch-size 16 --learning-rate 2e-2", 200,
                 "generate {run} 'five four' --greedy --max-tokens 16 --top-alternatives 2", "backwards.txt"),
    "translation": Kind(_TWO_STACKS + " --learning-rate 2e-2", 400, _TRANSLATE, _PAIR_SCORE),
    "transformer": Kind(
        _TWO_STACKS.replace("translation-tiny", "transformer-base") + " --learning-rate 1e-2 --warmup-steps 50",
        1200,
        _TRANSLATE, _PAIR_SCORE,
    ),
    "one-stack": Kind(_PAIRS + " --decoder-only --learning-rate 2e-2", 400, _TRANSLATE, _PAIR_SCORE),
    "seq2seq": Kind(
        _TWO_STACKS.replace("translation-tiny", "seq2seq-tiny").replace(" --n-heads 2 --d-ff 32", "")
        + " --learning-rate 2e-2", 1000, _TRANSLATE, _PAIR_SCORE,
    ),
    "syntax": Kind(
        _TWO_STACKS + " --learning-rate 2e-2 --syntax both --heads numbers.heads", 400,
        _TRANSLATE + " --heads held-out.heads", _PAIR_SCORE + " --heads held-out.heads",
    ),
}  # fmt: skip
"""The runs by name, those that others start from first."""
_HARDWARE = ("--device", "cpu", "--dtype", "float32", "--threads", "1")


def main() -> None:
    """Make all runs, measure what they predict, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, help="commit that writes the runs")
    base = parser.parse_args().base
    with tempfile.TemporaryDirectory() as made:
        tree, folder = Tree(extracted(base, Path(made, "tree"))), Path(made, "runs")
        folder.mkdir()
        _write_data(folder)
        expected = {name: _make(name, kind, folder, tree) for name, kind in KINDS.items()}
        tree.close()
        for name in KINDS:
            _make_portable(folder, name)
        (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
        shutil.rmtree(folder / "cache")
        shutil.rmtree(RUNS, ignore_errors=True)
        shutil.copytree(folder, RUNS)
    print(f"{RUNS}: {len(KINDS)} runs, {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"these are more than {MOST_BYTES} bytes")


def _write_data(folder: Path) -> None:
    """Write the texts that the runs learn."""
    counting = [" ".join(_NUMBERS[(first + place) % 6] for place in range(8)) for first in range(60)]
    _write(folder / "counting.txt", counting)
    _write(folder / "counting-short.txt", counting[:2])
    _write(folder / "backwards.txt", [" ".join(reversed(line.split())) for line in counting])
    after = zip(_NUMBERS, _NUMBERS[1:] + _NUMBERS[:1], strict=True)
    questions = [json.dumps({"prompt": f"after {word} comes ", "completion": following}) for word, following in after]
    _write(folder / "questions.jsonl", questions * 12)
    labels = [json.dumps({"text": word, "label": "not" if place % 2 == 0 else "even"})
              for place, word in enumerate(_NUMBERS)]  # fmt: skip
    _write(folder / "labels.jsonl", labels * 4)
    draw = random.Random(3)
    for name, count in {"numbers": 300, "held-out": 4}.items():
        sources = [draw.sample(_NUMBERS, draw.randint(2, 3)) for _ in range(count)]
        _write(folder / f"{name}.en", [" ".join(words) for words in sources])
        _write(folder / f"{name}.de", [" ".join(_GERMAN[word] for word in words) for words in sources])
        _write(folder / f"{name}.heads", [" ".join(str(place) for place in range(len(words))) for words in sources])


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _make(name: str, kind: Kind, folder: Path, tree: Tree) -> dict[str, Any]:
    """Train a run; returns what it predicts."""
    length = ["--steps", str(kind.steps), "--evaluate-every", "0", "--keep", "1", "--seed", "1"]
    _lm(["train", *kind.train.split(), *length, *_HARDWARE, "-o", name], folder, tree)
    used = use_command(kind, name)
    output = [json.loads(line) for line in _lm(used, folder, tree).splitlines()]
    expected: dict[str, Any] = {"predictions": [predicted(line) for line in output]}
    margin = min(_margins(output))
    if kind.score:
        scored = json.loads(_lm(score_command(kind, name), folder, tree))
        expected["nats"], expected["tokens"] = scored["total"]["nats"], scored["total"]["tokens"]
    print(f"{name:12} margin {margin:.2f} nats  {json.dumps(expected, ensure_ascii=False)[:150]}", flush=True)
    if margin < LEAST_MARGIN:
        sys.exit(f"{name}: a margin below {LEAST_MARGIN}: train it longer")
    return expected


def use_command(kind: Kind, run: str) -> list[str]:
    """The command line that shows what a run has learned, as JSON."""
    return [*shlex.split(kind.use.format(run=run)), "--json", *_HARDWARE]


def score_command(kind: Kind, run: str) -> list[str]:
    """The command line that measures a run's perplexity."""
    return ["perplexity", run, *kind.score.split(), "--json", *_HARDWARE]


def predicted(line: Mapping[str, Any]) -> Any:
    """The tokens, labels or texts in a line of results: what rounding must not change."""
    if "translations" in line:
        return line["translations"][0]["tokens"]
    if "filled" in line:
        return line["filled"]
    return line["label"] if "label" in line else line["tokens"]


def _margins(output: list[dict[str, Any]]) -> Iterator[float]:
    """How much likelier each prediction is than the second one, or at least is where that one is not in the output."""
    for line in output:
        for first, second in line.get("alternatives", []):
            yield first["logprob"] - second["logprob"]
        for blank in line.get("blanks", []):
            yield math.log(blank[0]["probability"] / blank[1]["probability"])
        if "probabilities" in line:
            best, second = sorted(line["probabilities"].values(), reverse=True)[:2]
            yield math.log(best / second)
        for logprob in line.get("translations", [{}])[0].get("logprobs", []):
            yield logprob - math.log(-math.expm1(logprob))


def _lm(arguments: list[str], folder: Path, tree: Tree) -> str:
    code, output, errors = tree.command(arguments, folder, {"LM_CACHE": str(folder / "cache")})
    if code:
        sys.exit(f"lm {' '.join(arguments)}: {errors}")
    return output


def _make_portable(folder: Path, name: str) -> None:
    """Name the tokens of a run by a relative path, put them there, and leave out how long it took."""
    run = folder / name
    configs = [run / "config.json", *run.glob("checkpoints/*/config.json")]
    for path in configs:
        config = json.loads(path.read_text())
        kept = Path("data", config["plan"]["data_key"][:12])
        if not (folder / kept).exists():
            shutil.copytree(config["plan"]["data"], folder / kept)
        config["plan"]["data"] = kept.as_posix()
        path.write_text(json.dumps(config, indent=2) + "\n")
    for manifest in run.glob("checkpoints/*/manifest.json"):
        _sign(manifest)
    metrics = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*metrics[:2], *metrics[-_LOGGED:]]))
    (run / "timings.jsonl").unlink()
    (run / ".lock").unlink()


def _sign(manifest: Path) -> None:
    """Bring the checksum of a changed config.json up to date."""
    sums = json.loads(manifest.read_text())
    place = sums.get("sha256", sums)
    place["config.json"] = hashlib.sha256((manifest.parent / "config.json").read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sums, indent=2) + "\n")


if __name__ == "__main__":
    main()
