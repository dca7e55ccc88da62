"""Download, verify and unpack a file of a public corpus.

`SHA256SUMS` in the folder records what was downloaded, in the format of `sha256sum`. A file without a published
checksum is trusted the first time and compared with the record from then on.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lm import files
from lm.errors import InputError
from lm.files import sha256
from lm.text.find import ProgressCallback
from lm.text.public.catalogue import PublicFile
from lm.text.public.download import download

CHECKSUMS_FILE = "SHA256SUMS"

_BLOCK_BYTES = 1 << 20

Check = Literal["published", "recorded", "first"]


@dataclass(frozen=True)
class FetchedFile:
    """A corpus file, ready to read.

    Attributes:
        check: what its download was verified against: a published checksum, a recorded one, or nothing (first
            download).
    """

    path: Path
    size: int
    sha256: str
    check: Check
    reused: bool


def fetch_file(file: PublicFile, folder: Path, *, progress: ProgressCallback | None = None) -> FetchedFile:
    """Download a corpus file into a folder, which is created, unless it is there.

    Raises:
        InputError: the download failed, or a checksum differs.
    """
    path, archive = folder / (file.text or file.name), folder / file.name
    reused = path.exists()
    check: Check = "published" if file.sha256 else "recorded" if file.name in _read_hashes(folder) else "first"
    if not reused:
        if file.text:
            check_unpackable(file.name)
        files.make_folder(folder)
        if archive.exists():  # put there by hand, or left by a process that was killed before it was unpacked
            _verify_hash(archive, archive.name, file.sha256)
        else:
            part = folder / f"{file.name}.part"
            try:
                download(file.url, part, progress=progress)
            except InputError:
                if not part.stat().st_size:
                    part.unlink()
                raise
            try:
                _verify_hash(part, archive.name, file.sha256)
            except InputError:
                part.unlink()
                raise
            part.replace(archive)
        if file.text:
            unpack(archive, path)
            archive.unlink()
    checksum = _verify_hash(path, path.name, None if file.text else file.sha256)
    return FetchedFile(path, path.stat().st_size, checksum, check, reused)


def _verify_hash(path: Path, name: str, published: str | None) -> str:
    """Return the checksum of a file, recorded under a name; InputError if it is not the published or recorded one."""
    checksum, known = sha256(path), _read_hashes(path.parent)
    expected = published or known.get(name, checksum)
    if checksum != expected:
        raise InputError(f"{path}: not the expected file (sha256 {checksum}, not {expected}); remove it and try again")
    if known.get(name) != checksum:
        lines = sorted(f"{digest}  {each}\n" for each, digest in {**known, name: checksum}.items())
        files.replace_text(path.parent / CHECKSUMS_FILE, "".join(lines))
    return checksum


def _read_hashes(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / CHECKSUMS_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def check_unpackable(name: str) -> None:
    """Raise InputError if a file of this name could not be unpacked, before it is downloaded."""
    if name.endswith(".parquet") and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{name}: to read Parquet tables, install the pyarrow package (pip install pyarrow)")


def unpack(archive: Path, text: Path) -> None:
    """Extract the text of an archive to a file; nothing is left if that fails.

    Raises:
        InputError: the archive is damaged, or a package is missing.
    """
    check_unpackable(archive.name)
    part = text.with_name(text.name + ".part")
    with part.open("wb") as stream:
        for block in _read_parquet(archive) if archive.suffix == ".parquet" else _read_zip(archive):
            stream.write(block)
    part.replace(text)


def _read_zip(archive: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(packed.namelist()[0]) as member:
            while block := member.read(_BLOCK_BYTES):
                yield block
    except (zipfile.BadZipFile, EOFError, IndexError) as error:
        raise InputError(f"{archive}: a damaged zip file ({error}); remove it and try again") from None


def _read_parquet(archive: Path) -> Iterator[bytes]:
    import pyarrow  # noqa: PLC0415 (an extra, and slow)
    import pyarrow.parquet  # noqa: PLC0415

    try:
        for batch in pyarrow.parquet.ParquetFile(archive).iter_batches(columns=["text"]):
            yield restore_wikitext(batch.column("text").to_pylist()).encode()
    except pyarrow.ArrowException as error:
        raise InputError(f"{archive}: a damaged Parquet file ({error}); remove it and try again") from None


def restore_wikitext(lines: Iterable[str]) -> str:
    """Return WikiText lines as in the original files, where empty lines hold a space."""
    return "".join(line or " \n" for line in lines)
