"""Token shards from text, as `lm prepare` writes them, against the `tokenizers` library called directly."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import tokenizers

from lm.config.run_config import DataConfig, TokenizerConfig
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import read_training_texts, scan_corpus
from lm.text.find import find_text_files
from lm.tokenizer import Tokenizer
from lm.tokenizer.training import train
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads.timing import timer

STORIES = Path(__file__).parents[3] / "corpora" / "stories" / "train.txt"
PIECE_CHARACTERS, BATCH = 1 << 16, 16


def prepare(folder: Path, *, copies: int, vocab_size: int = 4096) -> None:
    """Write the stories that ship with `lm` several times into a file, and a tokenizer trained on them."""
    text, tokenizer = _files(folder)
    if not text.exists():
        corpus = scan_corpus(find_text_files([str(STORIES)]), DataConfig())
        config = TokenizerConfig(vocab_size=vocab_size)
        train(read_training_texts(corpus), config, corpus_bytes=corpus.files_bytes).save(tokenizer)
        text.write_bytes(copies * STORIES.read_bytes())


def lm(folder: Path, threads: int) -> Workload:
    """Read, hash, split, encode and write."""
    text, path = _files(folder)
    sources, tokenizer = find_text_files([str(text)]), Tokenizer.load(path)

    def work() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            prepare_corpus(scan_corpus(sources, DataConfig()), tokenizer, folder=Path(fresh) / "tokens")

    return Workload(timer(work))


def encode_batch(folder: Path, threads: int) -> Workload:
    """Encode the text in memory, and take the IDs out."""
    path, tokenizer = _files(folder)
    return Workload(timer(_encoding(tokenizers.Tokenizer.from_file(str(tokenizer)), path.read_text(encoding="utf-8"))))


def _encoding(library: tokenizers.Tokenizer, text: str) -> Callable[[], int]:
    pieces = [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]
    batches = [pieces[start : start + BATCH] for start in range(0, len(pieces), BATCH)]
    return lambda: sum(
        len(each.ids) for batch in batches for each in library.encode_batch(batch, add_special_tokens=False)
    )


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "stories.txt", folder / "stories-tokenizer.json"
