"""Find the files of a corpus: names, folders, globs, and `-` for stdin.

Stdin and pipes can be read only once, so they are copied to a temporary file first.
"""

from __future__ import annotations

import atexit
import dataclasses
import fnmatch
import glob
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO

from lm.config.run_config import DataConfig, FilesConfig
from lm.errors import InputError
from lm.text import decode
from lm.text.text_file import FORMATS, TextFile

STDIN = "-"

ProgressCallback = Callable[[int, int | None], None]
"""Called with the bytes done, and the total if known."""


def find_text_files(
    patterns: Sequence[str], data: DataConfig | None = None, reading: FilesConfig | None = None
) -> list[TextFile]:
    """Resolve files, folders, globs and `-` (stdin) to files, each once, in the order given.

    A folder contributes, sorted by path and recursively, the files with a suffix of `FORMATS`, or those that match
    `include`. Hidden files are skipped. A glob (`**` is recursive) contributes the files it matches.

    Raises:
        InputError: a file is missing, a name is empty, or a folder or glob has no text file.
    """
    data, reading = data or DataConfig(), reading or FilesConfig()
    by_path = {
        file.path.resolve(): dataclasses.replace(file, data=data, reading=reading)
        for pattern in patterns
        for file in _resolve_pattern(pattern, reading)
    }
    return [*by_path.values()]


def refuse_missing(patterns: Iterable[str]) -> None:
    """Raise InputError for the first pattern that matches nothing, without reading any file."""
    for pattern in patterns:
        if pattern != STDIN and not Path(pattern).exists() and not _expand_glob(pattern):
            raise InputError(f"{pattern}: no such file")


def read_lines(name: str, reading: FilesConfig | None = None) -> Iterator[str]:
    """Yield the lines of files, which may be compressed, or pipes; errors as of `find_text_files`."""
    for file in find_text_files([name], reading=reading):
        yield from decode.split_lines(file.text())


def _resolve_pattern(pattern: str, reading: FilesConfig) -> list[TextFile]:
    path = Path(pattern)
    if pattern == STDIN:
        return [_copy_stdin(sys.stdin.buffer)]
    if path.is_file():
        return [TextFile(pattern, path)]
    if path.exists() and not path.is_dir():  # the shell's <(command) is a pipe, to be read only once
        return [_copy_pipe(path, path.stat().st_ino)]
    if pattern and path.is_dir():
        found = [below for below in sorted(path.rglob("*")) if _is_read(below, below.relative_to(path), reading)]
    else:
        found = [match for match in sorted(_expand_glob(pattern)) if _is_selected(match, reading)]
    if not found:
        raise InputError(f"{pattern}: no such file, and no {', '.join(reading.include or FORMATS)} file matches")
    return [TextFile(str(each), each) for each in found]


def _expand_glob(pattern: str) -> list[Path]:
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else []  # noqa: PTH207 (may be absolute)
    return [path for path in map(Path, matches) if path.is_file()]


def _is_read(path: Path, below: Path, reading: FilesConfig) -> bool:
    """Return whether a file of a folder is read: by its suffix if `include` doesn't say."""
    is_known = reading.include or Path(decode.strip_compression_suffix(path.name).lower()).suffix in FORMATS
    is_hidden = any(part.startswith(".") for part in below.parts)
    return bool(is_known) and not is_hidden and path.is_file() and _is_selected(below, reading)


def _is_selected(path: Path, reading: FilesConfig) -> bool:
    """Apply the include and exclude globs.

    A glob with a slash matches the path, any other one a name: of the file or, to exclude it, of a folder above.
    """

    def match(globs: Sequence[str], names: Sequence[str]) -> bool:
        whole = path.as_posix()
        return any(fnmatch.fnmatchcase(whole if "/" in glob else name, glob) for glob in globs for name in names)

    names = (path.name, decode.strip_compression_suffix(path.name))
    return not match(reading.exclude, (*path.parts, *names)) and (not reading.include or match(reading.include, names))


@lru_cache(maxsize=1)
def _copy_stdin(stdin: BinaryIO) -> TextFile:
    """Copy stdin once; later calls return the same copy."""
    return _write_temporary_file(decode.read_stream(stdin), name="stdin")


@cache
def _copy_pipe(path: Path, _inode: int) -> TextFile:
    """Copy a pipe once per inode; later calls return the same copy."""
    with path.open("rb") as stream:
        return _write_temporary_file(decode.read_stream(stream), name=str(path))


def _write_temporary_file(parts: Iterable[bytes], *, name: str) -> TextFile:
    """Write bytes to a temporary file, deleted at exit; its format is detected from its beginning, as for stdin."""
    descriptor, path = tempfile.mkstemp(prefix="lm-text-")
    atexit.register(Path(path).unlink, missing_ok=True)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
    return TextFile(name, Path(path), is_copy=True)
