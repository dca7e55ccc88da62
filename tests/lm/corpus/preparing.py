"""Preparing as the commands do it: survey, then tokenize."""

from collections.abc import Sequence
from pathlib import Path

from lm.config.run_config import DataConfig, TokenizerConfig
from lm.corpus.prepare import PreparedFolder, prepare_corpus
from lm.corpus.survey import scan_corpus
from lm.text.find import ProgressCallback
from lm.text.text_file import TextFile
from lm.tokenizer import Tokenizer, training

DEFAULT = DataConfig()


def prepare(
    files: Sequence[TextFile],
    tokenizer: Tokenizer,
    config: DataConfig = DEFAULT,
    folder: Path | None = None,
    *,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> PreparedFolder:
    """Survey files, and tokenize them into a folder or into the cache."""
    return prepare_corpus(scan_corpus(files, config), tokenizer, folder=folder, force=force, progress=progress)


def written(folder: Path, *texts: str) -> list[TextFile]:
    """Files corpus-0.txt, corpus-1.txt, …"""
    found = []
    for number, text in enumerate(texts):
        path = folder / f"corpus-{number}.txt"
        path.write_bytes(text.encode())
        found.append(TextFile(path.name, path, DataConfig()))
    return found


def byte_tokenizer() -> Tokenizer:
    return training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0)
