"""Public corpora: where their files are, and downloads."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import corpora
from lm.errors import InputError, UsageError, missing_packages
from lm.files import atomic_write_bytes, make_folder, sha256

_TIMEOUT = 30.0
_BLOCK_BYTES = 1 << 18
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
_WIKITEXT = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-2-raw-v1/"
_TINY_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-"


class PublicCorpus(NamedTuple):
    """A corpus that `lm corpus` lists.

    Attributes:
        size: download size in bytes, approximately.
        train: arguments of `lm train`, with `{folder}` for the folder of the files.
        files: SHA-256 by URL, if one is published; a file: URL ships with lm, and a Parquet file becomes text.
    """

    name: str
    description: str
    licence: str
    train: str
    size: int
    files: Mapping[str, str | None]


def _shipped(*names: str) -> dict[str, None]:
    return dict.fromkeys(corpora.path(name).as_uri() for name in names)


CORPORA = (
    PublicCorpus(
        "stories", "1,069 short English stories; ships with lm", "MIT", "{folder}/train.txt", 1_080_588,
        _shipped("stories/train.txt", "stories/heldout.txt"),
    ),
    PublicCorpus(
        "parallel", "20,000 English sentences and their German; ships with lm", "MIT",
        "--source {folder}/train.en --target {folder}/train.de", 2_365_418,
        _shipped("parallel/train.en", "parallel/train.de", "parallel/heldout.en", "parallel/heldout.de"),
    ),
    PublicCorpus(
        "tinyshakespeare", "40,000 lines of Shakespeare's plays", "public domain", "{folder}/input.txt", 1_115_394,
        {f"{_SHAKESPEARE}input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
    PublicCorpus(
        "wikitext-2", "720 Wikipedia articles, 2 million words", "CC BY-SA",
        "{folder}/train-00000-of-00001.txt --validation {folder}/validation-00000-of-00001.txt", 7_800_000,
        dict.fromkeys(f"{_WIKITEXT}{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")),
    ),
    PublicCorpus(
        "tinystories", "2.7 million children's stories by GPT-4", "CDLA-Sharing-1.0",
        "{folder}/TinyStoriesV2-GPT4-train.txt --validation {folder}/TinyStoriesV2-GPT4-valid.txt", 2_250_000_000,
        {f"{_TINY_STORIES}train.txt": None, f"{_TINY_STORIES}valid.txt": None},
    ),
    PublicCorpus(
        "multi30k", "29,000 image captions, English and German", "none given; images: Flickr's",
        "--source {folder}/train.en.gz --target {folder}/train.de.gz "
        "--validation-source {folder}/val.en.gz --validation-target {folder}/val.de.gz", 1_300_000,
        {
            f"{_MULTI30K}train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            f"{_MULTI30K}train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
            f"{_MULTI30K}val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            f"{_MULTI30K}val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
            f"{_MULTI30K}test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            f"{_MULTI30K}test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
        },
    ),
)  # fmt: skip


def find_corpus(name: str) -> PublicCorpus:
    """Return a corpus by name; UsageError if there is none."""
    known = {corpus.name: corpus for corpus in CORPORA}
    if name.lower() not in known:
        raise UsageError(f"no corpus is called {name!r}; `lm corpus list` lists all")
    return known[name.lower()]


def fetch(
    url: str, folder: Path, *, checksum: str | None = None, progress: Callable[[int, int | None], None] | None = None
) -> Path:
    """Download a file into a folder unless it is there, verify it, and return its path, or that of its text.

    Raises:
        InputError: the download failed, or the checksum differs.
    """
    path = folder / url.rpartition("/")[2]
    text = path.with_suffix(".txt") if path.suffix == ".parquet" else path
    make_folder(folder)
    if not (text.exists() or path.exists()):
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, atomic_write_bytes(path) as file:
                done, total = 0, int(response.headers["Content-Length"] or 0)
                while block := response.read(_BLOCK_BYTES):
                    done += file.write(block)
                    if progress:
                        progress(done, total)
                if done < total:
                    raise OSError("the connection was cut")
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{url}: {error}") from None
    if text != path and path.exists():
        _extract(path, text)
        path.unlink()
    if checksum is not None and sha256(path) != checksum:
        raise InputError(f"{path}: not the published file (another SHA-256); remove it and try again")
    return text


def _extract(table: Path, path: Path) -> None:
    """Write the lines of WikiText as in the original files."""
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (an extra, and slow)
    except ImportError:
        raise missing_packages("WikiText", "pyarrow") from None
    with atomic_write_bytes(path) as file:
        for batch in ParquetFile(table).iter_batches(columns=["text"]):
            file.write("".join(line or " \n" for line in batch.column("text").to_pylist()).encode())
