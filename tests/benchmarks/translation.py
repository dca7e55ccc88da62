"""How good translation from Multi30k's 29,000 pairs becomes and how soon: trained, translated and scored as users do.

    python -m tests.benchmarks.translation DATA --seeds 1 2 [--reverse] [-- flags of lm train]

DATA holds train, val and test_2016_flickr, each as .en and .de, and the test's lowercased, Moses-tokenised
test_2016_flickr.lc.norm.tok files. The whitespace figure needs `pip install sacremoses`.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from tests.benchmarks.runs import lm, readings

TEST = "test_2016_flickr"


def train(data: Path, sides: Sequence[str], seed: int, out: Path, flags: Sequence[str]) -> None:
    """A run, unless it already exists."""
    if (out / "best").exists():
        return
    source, target = sides
    lm(
        "train", "--source", f"{data}/train.{source}", "--target", f"{data}/train.{target}",
        "--validation-source", f"{data}/val.{source}", "--validation-target", f"{data}/val.{target}",
        "--seed", str(seed), "-o", str(out), *flags,
    )  # fmt: skip


def report(run: Path) -> None:
    """Validation BLEU of greedy translations against minutes and epochs."""
    for reading in (each for each in readings(run) if each.bleu is not None):
        print(f"  {reading.seconds / 60:6.1f} min  {reading.epoch:6.1f} epochs  validation BLEU {reading.bleu:.2f}")


def moses(lines: Sequence[str], language: str) -> list[str]:
    """Lowercased, punctuation normalised and tokenised as the reference is: normalise, tokenise, lowercase."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalise, tokenise = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [tokenise.tokenize(normalise.normalize(line), return_str=True, escape=True).lower() for line in lines]


def scores(data: Path, sides: Sequence[str], run: Sequence[Path], flags: Sequence[str] = ()) -> tuple[float, float]:
    """Cased BLEU by 13a, and whitespace BLEU on the lowercased, tokenised reference."""
    source, target = sides
    out = run[0].with_suffix(f".{TEST}.{target}")
    ensemble = [flag for other in run[1:] for flag in ("--ensemble", str(other))]
    lm("translate", str(run[0]), f"{data}/{TEST}.{source}", "-o", str(out), *ensemble, *flags)
    translations = out.read_text().splitlines()
    cased, plain = BLEU(), BLEU(tokenize="none")
    references = (data / f"{TEST}.{target}").read_text().splitlines()
    tokenised = (data / f"{TEST}.lc.norm.tok.{target}").read_text().splitlines()
    found = (
        cased.corpus_score(translations, [references]).score,
        plain.corpus_score(moses(translations, target), [tokenised]).score,
    )
    print(f"  {cased.get_signature()}\n  {plain.get_signature()} (lowercased and tokenised by sacremoses)")
    return found


def main() -> None:
    """Train, translate and score for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--reverse", action="store_true", help="German to English")
    arguments, flags = parser.parse_known_args()
    sides = ("de", "en") if arguments.reverse else ("en", "de")
    runs, found = [], []
    for seed in arguments.seeds:
        run = arguments.out / f"{'-'.join(sides)}-{seed}"
        train(arguments.data, sides, seed, run, [flag for flag in flags if flag != "--"])
        report(run)
        runs.append(run)
        found.append(scores(arguments.data, sides, [run]))
        print(f"{run}: BLEU {found[-1][0]:.2f} (13a, cased), {found[-1][1]:.2f} (whitespace, lowercased)", flush=True)
    cased, plain = (statistics.mean(column) for column in zip(*found, strict=True))
    print(f"mean of {len(found)} seeds: BLEU {cased:.2f} (13a, cased), {plain:.2f} (whitespace, lowercased)")
    if len(runs) > 1:
        together = scores(arguments.data, sides, runs)
        print(f"all of them as an ensemble: BLEU {together[0]:.2f} and {together[1]:.2f}")


if __name__ == "__main__":
    main()
