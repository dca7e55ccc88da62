"""Public corpora: where their files are, and resumable downloads."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import corpora
from lm.config.settings import did_you_mean
from lm.errors import InputError, UsageError, missing_packages
from lm.files import atomic_write_bytes, make_folder, sha256
from lm.locks import LockFile

ATTEMPTS = 3
"""Connections without progress until a download fails."""
PAUSE = 2.0
"""Seconds between connections."""

_TIMEOUT = 30.0
_BLOCK_BYTES = 1 << 18
_MAY_PASS = (408, 429)
_SERVER_ERROR = 500
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
_WIKITEXT = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/"
_TINY_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/"


class PublicFile(NamedTuple):
    """A file to download.

    Attributes:
        url: a file: URL if it ships with lm.
        sha256: the checksum of the download, if one is published.
        text: name of the text that is extracted, if the download is an archive or a table.
    """

    url: str
    sha256: str | None = None
    text: str | None = None


class PublicCorpus(NamedTuple):
    """A corpus that `lm corpus` lists.

    Attributes:
        size: download size in bytes, approximately.
        train: arguments of `lm train`, with `{folder}` for the folder of the files.
    """

    name: str
    description: str
    licence: str
    train: str
    size: int
    files: tuple[PublicFile, ...]


def _shipped(*names: str) -> tuple[PublicFile, ...]:
    return tuple(PublicFile(corpora.path(name).as_uri()) for name in names)


def _wikitext(size: str, *train: str) -> tuple[PublicFile, ...]:
    """Return the files of WikiText: those to train on, validation.txt and test.txt."""
    texts = {"validation-00000-of-00001": "validation.txt", "test-00000-of-00001": "test.txt"}
    texts |= {f"train-{index:05}-of-{len(train):05}": text for index, text in enumerate(train)}
    return tuple(PublicFile(f"{_WIKITEXT}{size}-raw-v1/{name}.parquet", None, text) for name, text in texts.items())


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
        (PublicFile(_SHAKESPEARE + "input.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
    ),
    PublicCorpus(
        "wikitext-2", "720 Wikipedia articles, 2 million words", "CC BY-SA",
        "{folder}/train.txt --validation {folder}/validation.txt", 7_800_000, _wikitext("wikitext-2", "train.txt"),
    ),
    PublicCorpus(
        "wikitext-103", "28,000 Wikipedia articles, 100 million words", "CC BY-SA",
        "{folder}/train-1.txt {folder}/train-2.txt --validation {folder}/validation.txt", 315_000_000,
        _wikitext("wikitext-103", "train-1.txt", "train-2.txt"),
    ),
    PublicCorpus(
        "tinystories", "2.7 million children's stories by GPT-4", "CDLA-Sharing-1.0",
        "{folder}/TinyStoriesV2-GPT4-train.txt --validation {folder}/TinyStoriesV2-GPT4-valid.txt", 2_250_000_000,
        (PublicFile(_TINY_STORIES + "TinyStoriesV2-GPT4-train.txt"),
         PublicFile(_TINY_STORIES + "TinyStoriesV2-GPT4-valid.txt")),
    ),
    PublicCorpus(
        "enwik8", "100 million bytes of Wikipedia with mark-up, of 2006", "CC BY-SA, GFDL",
        "{folder}/enwik8.txt --validation 0.05", 36_400_000,
        (PublicFile("https://mattmahoney.net/dc/enwik8.zip", None, "enwik8.txt"),),
    ),
    PublicCorpus(
        "multi30k", "29,000 image captions, English and German", "none given; images: Flickr's",
        "--source {folder}/train.en.gz --target {folder}/train.de.gz "
        "--validation-source {folder}/val.en.gz --validation-target {folder}/val.de.gz", 1_300_000,
        tuple(PublicFile(f"{_MULTI30K}{name}.gz", checksum) for name, checksum in {
            "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
            "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
            "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
        }.items()),
    ),
)  # fmt: skip


def find_corpus(name: str) -> PublicCorpus:
    """Return a corpus by name; UsageError if there is none."""
    known = {corpus.name: corpus for corpus in CORPORA}
    if name.lower() not in known:
        raise UsageError(f"no corpus is called {name!r}{did_you_mean(name.lower(), known)}; `lm corpus list` lists all")
    return known[name.lower()]


def fetch(file: PublicFile, folder: Path, *, progress: Callable[[int, int | None], None] | None = None) -> Path:
    """Download a file into a folder unless it is there, verify it, and return its path, or that of its text.

    A file NAME.part from an interrupted download is continued.

    Raises:
        InputError: the download failed, a checksum differs, or another process downloads to the folder.
    """
    name = file.url.rpartition("/")[2]
    download, path = folder / name, folder / (file.text or name)
    make_folder(folder)
    lock = LockFile(folder / ".lock")
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(f"{folder}: another process is downloading to it") from None
    try:
        if not path.exists():
            if not download.exists():
                part = download.with_name(name + ".part")
                _download(file.url, part, progress)
                part.replace(download)
            _verify(download, file.sha256)
            if file.text:
                with atomic_write_bytes(path) as text:
                    for block in _extract(download):
                        text.write(block)
                download.unlink()
        elif not file.text:
            _verify(path, file.sha256)
    finally:
        lock.release()
    return path


def _download(url: str, part: Path, progress: Callable[[int, int | None], None] | None) -> None:
    """Append the missing bytes of a file to its part; a connection that is cut is opened again."""
    failures, problem = 0, ""
    with part.open("ab") as stream:
        while failures < ATTEMPTS:
            have = stream.tell()
            headers = {"User-Agent": "lm-toolkit", "Range": f"bytes={have}-"}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
                    if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # the whole file
                        stream.seek(0)
                        stream.truncate()
                    length = response.headers["Content-Length"]
                    total = length and stream.tell() + int(length)
                    while block := response.read(_BLOCK_BYTES):
                        stream.write(block)
                        if progress:
                            progress(stream.tell(), total)
                    if total in (None, stream.tell()):
                        return
                    problem = "the connection was cut"
            except urllib.error.HTTPError as error:
                problem = f"the server answers {error.code} {error.reason}"
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    stream.seek(0)
                    stream.truncate()
                elif error.code < _SERVER_ERROR and error.code not in _MAY_PASS:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or "the connection was cut"
            failures = 0 if stream.tell() > have else failures + 1
            time.sleep(PAUSE)
    raise InputError(f"{url}: {problem}; the same command continues")


def _verify(path: Path, expected: str | None) -> None:
    if expected is not None and sha256(path) != expected:
        raise InputError(f"{path}: not the published file (another SHA-256); remove it and try again")


def _extract(archive: Path) -> Iterator[bytes]:
    """Yield the text of the first file of a zip archive, or of WikiText's lines in Parquet."""
    if archive.suffix == ".zip":
        try:
            with zipfile.ZipFile(archive) as packed, packed.open(packed.namelist()[0]) as member:
                while block := member.read(_BLOCK_BYTES):
                    yield block
        except (zipfile.BadZipFile, EOFError) as error:
            raise InputError(f"{archive}: a damaged zip file ({error})") from None
        return
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (an extra, and slow)
    except ImportError:
        raise missing_packages("WikiText", "pyarrow") from None
    for batch in ParquetFile(archive).iter_batches(columns=["text"]):
        yield "".join(line or " \n" for line in batch.column("text").to_pylist()).encode()  # as in the original files
