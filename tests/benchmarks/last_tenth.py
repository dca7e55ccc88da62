"""Plain `lm train FILE --budget 5m`: nats per character of the last tenth of a text, which training doesn't read.

    python -m tests.benchmarks.last_tenth tinyshakespeare.txt [--seeds 1 2 3] [--out runs] [-- other flags of lm train]

nanoGPT splits tinyshakespeare so, by characters. `lm train` holds out a tenth of the first nine.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.runs import lm


def nats_per_character(run: Path, file: Path) -> float:
    """Score a file with `lm perplexity`."""
    command = [sys.executable, "-m", "cli.main", "perplexity", str(run), str(file), "--json"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["total"]
    assert not result["lost_bytes"]
    return float(result["nats"]) / len(file.read_text(encoding="utf-8"))


def main() -> None:
    """Train and score for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/last-tenth"))
    arguments, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"] or ["--budget", "5m"]
    text, out = arguments.file.read_text(encoding="utf-8"), arguments.out
    out.mkdir(parents=True, exist_ok=True)
    first, last = out / "first.txt", out / "last.txt"
    first.write_text(text[: int(0.9 * len(text))], encoding="utf-8")
    last.write_text(text[int(0.9 * len(text)) :], encoding="utf-8")
    found = []
    for seed in arguments.seeds:
        run = out / str(seed)
        lm("train", str(first), *flags, "--seed", str(seed), "-o", str(run))
        found.append(nats_per_character(run, last))
        print(f"{run}: {found[-1]:.4f} nats/character", flush=True)
    print(f"mean of {len(found)} seeds: {statistics.mean(found):.4f} nats/character")


if __name__ == "__main__":
    main()
