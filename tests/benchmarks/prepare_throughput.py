"""How fast a corpus becomes token shards, beside the `tokenizers` library called directly on the same text.

    python tests/benchmarks/prepare_throughput.py TEXT [--tokenizer tokenizer.json] [--rounds 5]
    python tests/benchmarks/prepare_throughput.py TEXT --memory

Both take turns, so that a machine that others use slows both; what counts is the ratio of the medians. Directly means:
the text in memory, in pieces of 64 Ki characters, `encode_batch` on 16 of them at a time, and the ids taken out.
Preparing means all of it: reading twice, hashing, splitting, encoding, writing, syncing. With --memory only the
preparing is done, and the peak of resident memory printed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tokenizers

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.corpus import read_training_texts, scan_corpus
from lm.text.files import find_text_files
from lm.tokenizer.tokenizer import Tokenizer
from lm.tokenizer.training import train
from tests.lm.corpus.preparing import prepare

PIECE_CHARACTERS = 1 << 16
BATCH = 16


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        measure(arguments, Path(folder))


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    path = arguments.text
    size = path.stat().st_size
    sources = find_text_files([str(path)])
    tokenizer = Tokenizer.load(arguments.tokenizer) if arguments.tokenizer else trained(path)
    threads = os.environ.get("RAYON_NUM_THREADS", str(os.cpu_count()))
    print(f"{path.name}: {size / 1e6:.1f} MB, vocabulary {tokenizer.vocab_size}, {threads} threads")
    if arguments.memory:
        seconds = timed(partial(prepare, sources, tokenizer, DataConfig(), folder / "tokens"))
        print(f"prepared at {size / 1e6 / seconds:.2f} MB/s; peak resident memory {peak() / 1e6:.0f} MB")
        return
    tokenizer.save(folder / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = path.read_bytes().decode()
    directly, ours = [], []
    for number in range(arguments.rounds):
        directly.append(timed(lambda: encode_directly(library, text)))
        ours.append(timed(partial(prepare, sources, tokenizer, DataConfig(), folder / str(number))))
    first, second = (size / 1e6 / statistics.median(seconds) for seconds in (directly, ours))
    print(f"encode_batch directly {first:.2f} MB/s, prepare {second:.2f} MB/s (medians of {arguments.rounds} each)")
    print(f"ratio {second / first:.2f}; peak resident memory {peak() / 1e6:.0f} MB, the whole text among it")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    return parser.parse_args()


def trained(path: Path) -> Tokenizer:
    surveyed = scan_corpus(find_text_files([str(path)]), DataConfig())
    return train(read_training_texts(surveyed), TokenizerConfig(), corpus_bytes=surveyed.files_bytes).tokenizer


def encode_directly(library: tokenizers.Tokenizer, text: str) -> int:
    pieces = [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]
    tokens = 0
    for start in range(0, len(pieces), BATCH):
        for encoding in library.encode_batch(pieces[start : start + BATCH], add_special_tokens=False):
            tokens += len(encoding.ids)
    return tokens


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak() -> float:
    """The most memory this process ever had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
