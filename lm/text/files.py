"""Text files: what folders, globs and `-` (stdin) stand for, and their text and lines, decoded in bounded memory.

Files may be compressed (see `compression`). Stdin and pipes can be read only once, so they are copied to a temporary
file first.
"""

from __future__ import annotations

import codecs
import dataclasses
import glob
import gzip
import itertools
import lzma
import os
import shlex
import sys
import tempfile
import unicodedata
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from lm.errors import InputError, UsageError
from lm.text import examples, json_lines, parquet
from lm.text.examples import Example
from lm.text.rows import Row, texts

Compression = Literal[".gz", ".xz", ".zst"]

FIRST_BYTES: dict[Compression, bytes] = {
    ".gz": b"\x1f\x8b",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
}

_ZSTD_INPUT_BYTES = 1 << 9
"""Little, as its decompressor gives out all that it can: four bytes can stand for a block of 128 KiB, so 16 MiB."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def compression(path: Path, name: str) -> Compression | None:
    """The format a file is compressed in, by its first bytes or else by its name; None if it is not compressed."""
    with path.open("rb") as stream:
        beginning = stream.read(max(map(len, FIRST_BYTES.values())))
    if not beginning:
        return None
    told = (kind for kind, signature in FIRST_BYTES.items() if beginning.startswith(signature))
    named = (kind for kind in FIRST_BYTES if name.lower().endswith(kind))
    return next(told, None) or next(named, None)


def without_suffix(name: str) -> str:
    """A file's name without the suffix of a compression."""
    return next((name[: -len(kind)] for kind in FIRST_BYTES if name.lower().endswith(kind)), name)


def blocks(path: Path, kind: Compression | None, size: int, *, name: str) -> Iterator[bytes]:
    """The decompressed bytes of a file, in blocks of about `size` bytes, none of them empty.

    Raises:
        InputError: the file is damaged, or the package that reads it is missing.
    """
    readers: dict[Compression, Callable[[BinaryIO, int], Iterator[bytes]]]
    readers = {".gz": _gzip_blocks, ".xz": _xz_blocks, ".zst": _zstd_blocks}
    with path.open("rb") as stream:
        if kind is None:
            yield from _plain_blocks(stream, size)
            return
        damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
        if kind == ".zst":
            damage = (*damage, _zstd(name)[1])
        try:
            yield from readers[kind](stream, size)
        except damage as error:
            raise InputError(f"{name}: a damaged {kind} file ({error}); fetch or make it again") from None


def _plain_blocks(stream: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401 (gzip and lzma have classes of their own)
    while block := stream.read(size):
        yield block


def _gzip_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=stream) as unpacked:
        yield from _plain_blocks(unpacked, size)


def _xz_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with lzma.LZMAFile(stream) as unpacked:
        yield from _plain_blocks(unpacked, size)


def _zstd_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Frame by frame, since the ready-made readers take a file that was cut short for a whole one."""
    new, decompressor = _zstd(stream.name)[0], None
    for block in _plain_blocks(stream, min(size, _ZSTD_INPUT_BYTES)):
        rest = block
        while rest:
            decompressor = decompressor or new()
            unpacked = decompressor.decompress(rest)
            yield from (unpacked[start : start + size] for start in range(0, len(unpacked), size))
            rest = decompressor.unused_data if decompressor.eof else b""
            if decompressor.eof:
                decompressor = None
    if decompressor:
        raise EOFError("it ends in the middle")


def _zstd(name: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """What makes a decompressor, and the error it raises: Python's own from 3.14 on, else the zstandard package's."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 (not there in older versions)

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard  # noqa: PLC0415 (an extra)
    except ImportError:
        raise InputError(f"{name}: reading .zst files needs zstandard: pip install 'lm-toolkit[zstd]'") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


_CANDIDATES = ("CP949", "SHIFT_JIS", "EUC-JP", "GB18030", "BIG5", "CP1251", "CP1252")
"""As `iconv` and Python call them; the last two are what single bytes in most texts of Europe are."""

_NO_TEXT = ("Cc", "Co", "Cn")
"""Categories of control characters, private ones, and those that Unicode does not have."""

_SAMPLE_BYTES = 1 << 16


def decode(data: bytes, *, name: str) -> str:
    """The text of a whole file or pipe.

    Raises:
        InputError: it is not UTF-8; the message says what it may be and how to convert it.
    """
    refuse_utf16(data, name=name)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, name=name, offset=error.start) from None


def refuse_utf16(beginning: bytes, *, name: str, compressed: bool = False) -> None:
    """Raise InputError if a text begins with the byte order mark of UTF-16; for the arguments see `not_utf8`."""
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{name}: looks like UTF-16 text; convert it first: {_command('UTF-16', name, compressed)}")


def not_utf8(error: UnicodeDecodeError, *, name: str, offset: int, compressed: bool = False) -> InputError:
    """The error for bytes that could not be decoded: where they are, what their encoding may be, how to convert them.

    Args:
        error: raised by the decoder; the encoding is guessed from the bytes in it.
        name: of the file, for messages.
        offset: of the first wrong byte in the text.
        compressed: whether the file has to be decompressed first.
    """
    where = f"byte offset {offset}{' of the decompressed text' if compressed else ''}"
    wrong = f"{name}: not valid UTF-8 at {where} (0x{error.object[error.start]:02x})"
    if error.reason == "unexpected end of data":
        return InputError(f"{wrong}: it ends inside a character, so it seems to be cut off; get the whole text")
    fitting = _fitting(error.object[error.start : error.start + _SAMPLE_BYTES])
    guess = f"; it could be {', '.join(fitting)}" if fitting else "; it may be no text at all"
    return InputError(f"{wrong}; if you know its encoding, convert it: {_command('ENCODING', name, compressed)}{guess}")


def _command(encoding: str, name: str, compressed: bool) -> str:
    """The command that converts a file; what comes from a pipe has no name that `iconv` could open."""
    convert = f"iconv -f {encoding} -t UTF-8"
    file = without_suffix(name) if compressed else name
    return convert if name == "stdin" else f"{convert} {shlex.quote(file)} > NEW"


def _fitting(sample: bytes) -> list[str]:
    """The encodings in which a sample is text: each byte means something, and nothing is a control character."""
    return [name for name in _CANDIDATES if _reads_as_text(sample, name)]


def _reads_as_text(sample: bytes, encoding: str) -> bool:
    try:
        text = codecs.getincrementaldecoder(encoding)("strict").decode(sample)  # which may end inside a character
    except UnicodeDecodeError:
        return False
    return all(letter.isspace() or unicodedata.category(letter) not in _NO_TEXT for letter in text)


_BLOCK_BYTES = 1 << 18

_LONGEST = 1 << 28
"""Bytes of a line; a longer one is not read into memory."""


def lines(parts: Iterable[bytes], *, name: str) -> Iterator[str]:
    """The lines of a text without their ends, which are line feeds or carriage returns and line feeds.

    Args:
        parts: the bytes, cut anywhere; the last line need not have an end.
        name: of the file, for messages.

    Raises:
        InputError: a line is not valid UTF-8, or longer than 256 MiB.
    """
    number, held = 0, bytearray()
    for part in parts:
        held += part
        *whole, rest = held.split(b"\n")
        if len(rest) > _LONGEST:
            raise InputError(f"{name}: line {number + len(whole) + 1} is longer than {_LONGEST >> 20} MiB")
        held = bytearray(rest)
        for line in whole:
            number += 1
            yield _decoded(line, number, name)
    if held:
        yield _decoded(held, number + 1, name)


def file_lines(path: Path) -> Iterator[str]:
    """The lines of a file, which may be compressed.

    Raises:
        InputError: there is no such file, it is damaged, or its lines are refused by `lines`.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    yield from lines(blocks(path, compression(path, path.name), _BLOCK_BYTES, name=str(path)), name=str(path))


def _decoded(line: bytes | bytearray, number: int, name: str) -> str:
    try:
        text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: line {number} is not valid UTF-8 (at its byte {error.start})") from None
    return text.removesuffix("\r")


STDIN = "-"
ROW_SUFFIXES = (*json_lines.SUFFIXES, parquet.SUFFIX)
SUFFIXES = (".txt", ".text", ".md", *ROW_SUFFIXES)
"""What is taken of a folder, compressed or not; files named one by one, or by a glob, may have any suffix."""

FIELD = "text"
"""The field that holds the text in JSON Lines, unless another is named."""

BLOCK_BYTES = 1 << 18

_LONGEST_FIRST_LINE = 1 << 24

Observer = Callable[[bytes], None]
"""Called with each block of a file's bytes, decompressed, as it is read."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are done, and all there are where that is known."""


@dataclass(frozen=True)
class FileSpan:
    """Part of a file that begins and ends with documents: bytes, or row groups of a Parquet file."""

    start: int
    stop: int


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus.

    Attributes:
        name: what the user calls it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        field: the field that holds the text, in JSON Lines and Parquet files.
        supervised: whether each line is an example to learn from, a prompt and its completion.
        spool: the temporary copy of stdin or a pipe, which is deleted with the last TextFile that refers to it.
    """

    name: str
    path: Path
    field: str = FIELD
    supervised: bool = False
    spool: _Spool | None = dataclasses.field(default=None, repr=False, compare=False)

    @cached_property
    def holds_examples(self) -> bool:
        """Whether its first line is an example, in JSON Lines by its name or from a pipe, or so are its columns."""
        if self.is_parquet:
            return examples.has_fields(parquet.columns(self.path, name=self.name))
        return (self._is_named_json_lines or self.spool is not None) and examples.is_example(_first_line(self))

    @cached_property
    def is_json_lines(self) -> bool:
        """Whether each line is a document: by its name or, of stdin and pipes, by its first line."""
        if self._is_named_json_lines:
            return True
        return self.spool is not None and json_lines.is_document(_first_line(self), self.field)

    @cached_property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file: by its name or, from a pipe, by its first bytes."""
        if self.spool is None:
            return self.name.lower().endswith(parquet.SUFFIX)
        with self.path.open("rb") as stream:
            return stream.read(len(parquet.FIRST_BYTES)) == parquet.FIRST_BYTES

    @property
    def holds_rows(self) -> bool:
        """Whether each row is a document: the file is one of JSON Lines or a Parquet file."""
        return self.is_parquet or self.is_json_lines

    @property
    def _is_named_json_lines(self) -> bool:
        return without_suffix(self.name).lower().endswith(json_lines.SUFFIXES)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which finds the copy of a pipe by its path, and leaves it there."""
        told = {"is_json_lines": self.is_json_lines, "is_parquet": self.is_parquet}
        return {**self.__dict__, **told, "spool": None}

    def text(self, observe: Observer | None = None, span: FileSpan | None = None) -> Iterator[str]:
        """The text of the file, in blocks.

        Args:
            observe: called with each block of bytes as it is read.
            span: the part to read, of a file that is not compressed [default: all of it].

        Raises:
            InputError: the file is not UTF-8 text, or is damaged.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        kind = compression(self.path, self.name)
        offset = 0 if span is None else span.start
        read = blocks(self.path, kind, BLOCK_BYTES, name=self.name) if span is None else _span_blocks(self.path, span)
        for block in itertools.chain(read, [b""]):
            if observe:
                observe(block)
            if offset == 0:
                _refuse_binary(block, self, compressed=bool(kind))
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                wrong = offset - pending + error.start
                raise not_utf8(error, name=self.name, offset=wrong, compressed=bool(kind)) from None
            yield text
            offset += len(block)

    def rows(
        self, fields: Sequence[str], *, example: str, observe: Observer | None = None, span: FileSpan | None = None
    ) -> Iterator[Row]:
        """The rows of the file: objects in JSON Lines, or rows of a Parquet file.

        Args:
            fields: what is read of each row, at least.
            example: what a line may look like, for messages.
            observe: called with each block of bytes as it is read; of a Parquet file before all rows.
            span: the part to read [default: all of it].

        Raises:
            InputError: a line is no object, or the file is not UTF-8 text, or is damaged.
        """
        if not self.is_parquet:
            yield from json_lines.rows(self.text(observe, span), name=self.name, example=example)
            return
        if observe:
            for block in blocks(self.path, None, BLOCK_BYTES, name=self.name):
                observe(block)
        groups = None if span is None else range(span.start, span.stop)
        yield from parquet.rows(self.path, fields, name=self.name, groups=groups)

    def documents(self, observe: Observer | None = None, span: FileSpan | None = None) -> Iterator[str]:
        """The texts in `field` of the rows of the file.

        Args:
            observe: called with each block of bytes as it is read.
            span: the part to read [default: all of it].

        Raises:
            InputError: a row holds no text there, or the file is not UTF-8 text, or is damaged.
        """
        line = json_lines.document_line(self.field)
        return texts(self.rows([self.field], example=line, observe=observe, span=span), self.field)

    def examples(self, observe: Observer | None = None) -> Iterator[Example]:
        """The examples in the rows of the file.

        Args:
            observe: called with each block of bytes as it is read.

        Raises:
            InputError: a row is not an example, or the file is not UTF-8 text, or is damaged.
        """
        return examples.examples(self.rows(examples.FIELDS, example=examples.EXAMPLE, observe=observe))


def text_files(patterns: Sequence[str], *, field: str = FIELD, supervised: bool = False) -> list[TextFile]:
    """The files that files, folders, globs and `-` (stdin) stand for, each once, in the order given.

    A folder stands for the files with a suffix of `SUFFIXES` in it and below, in the order of their paths. Hidden files
    are skipped; where examples are asked for, only files of rows count. A glob (`**` goes into folders) stands for
    the files it matches.

    Args:
        patterns: as a user gives them.
        field: the field that holds the text in JSON Lines.
        supervised: whether each line of the files is an example to learn from.

    Raises:
        InputError: a file is missing, a name is empty, or a folder or glob holds no text file.
    """
    files: dict[Path, TextFile] = {}
    if "" in patterns:
        raise InputError("the name of a file is empty; give a path (is a variable unset?)")
    for pattern in patterns:
        for found in _resolve(pattern, ROW_SUFFIXES if supervised else SUFFIXES):
            file = dataclasses.replace(found, field=field, supervised=supervised)
            files.setdefault(file.path.resolve(), file)
    return list(files.values())


def refuse_missing(patterns: Iterable[str]) -> None:
    """Raise InputError for the first file, folder or glob that stands for nothing, without reading any."""
    for pattern in patterns:
        if pattern not in ("", STDIN) and not Path(pattern).exists() and not _matching(pattern):
            raise _nothing_there(pattern)


def refuse_stdin_twice(names: Iterable[str]) -> None:
    """UsageError if more than one of some files that differ in what they are for is stdin."""
    if list(names).count(STDIN) > 1:
        raise UsageError("stdin (-) stands for one file only: name the others")


def has_piped_text() -> bool:
    """Whether stdin is no terminal, and anything comes from it; it is read for that."""
    return not sys.stdin.isatty() and _spool_once(sys.stdin.buffer).path.stat().st_size > 0


def text_size(files: Iterable[TextFile]) -> int | None:
    """Bytes of text in all files by their sizes; None where the sizes do not tell: compressed files and rows."""
    size = 0
    for file in files:
        if file.supervised or file.holds_rows or compression(file.path, file.name):
            return None
        size += file.path.stat().st_size
    return size


def _resolve(pattern: str, suffixes: tuple[str, ...]) -> list[TextFile]:
    path = Path(pattern)
    if pattern == STDIN:
        return [_spool_once(sys.stdin.buffer)]
    if path.is_dir():
        return _in_folder(path, suffixes)
    if path.is_file():
        return [TextFile(pattern, path)]
    if path.exists():  # a pipe, as the shell's <(command) makes one, can be read only once
        return [_spool_pipe(path, path.stat().st_ino)]
    files = [TextFile(str(match), match) for match in sorted(_matching(pattern))]
    if not files:
        raise _nothing_there(pattern)
    return files


def _matching(pattern: str) -> list[Path]:
    """The files that a glob matches."""
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else []  # noqa: PTH207 (may be absolute)
    return [path for path in map(Path, matches) if path.is_file()]


def _nothing_there(pattern: str) -> InputError:
    return InputError(f"{pattern}: no " + ("file matches" if glob.has_magic(pattern) else "such file or folder"))


def _in_folder(folder: Path, suffixes: tuple[str, ...]) -> list[TextFile]:
    below = (path for path in sorted(folder.rglob("*")) if _is_text(path, suffixes) and path.is_file())
    shown = [path for path in below if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not shown:
        raise InputError(f"{folder}: no {', '.join(suffixes)} file in this folder; name other files one by one")
    return [TextFile(str(path), path) for path in shown]


def _is_text(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a name is that of a text: `a.txt`, `a.txt.gz` and `a.gz` are, `a.tar.gz` is not."""
    inner = without_suffix(path.name)
    return Path(inner).suffix.lower() in (suffixes if inner == path.name else (*suffixes, ""))


class _Spool:
    """A temporary file that is deleted when nothing refers to it any more, or when Python ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


@lru_cache(maxsize=1)
def _spool_once(stdin: BinaryIO) -> TextFile:
    """Stdin, which is at its end after the first reading, however often it is asked for."""
    return _spool(stdin, "stdin")


@cache
def _spool_pipe(path: Path, _inode: int) -> TextFile:
    """A pipe, which is empty after the first reading, however often it is asked for; another has another inode."""
    with path.open("rb") as stream:
        return _spool(stream, str(path))


def _spool(stream: BinaryIO, name: str) -> TextFile:
    return spooled(_plain_blocks(stream, BLOCK_BYTES), name=name)


def spooled(parts: Iterable[bytes], *, name: str) -> TextFile:
    """A temporary file of some bytes, whose form is told by its first line as that of stdin is."""
    descriptor, path = tempfile.mkstemp(prefix="lm-text-")
    spool = _Spool(Path(path))
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
    return TextFile(name, spool.path, spool=spool)


def _first_line(file: TextFile) -> bytes:
    kind, beginning = compression(file.path, file.name), b""
    for block in blocks(file.path, kind, BLOCK_BYTES, name=file.name):
        beginning += block
        if b"\n" in block or len(beginning) > _LONGEST_FIRST_LINE:
            break
    return beginning.partition(b"\n")[0]


def _span_blocks(path: Path, span: FileSpan) -> Iterator[bytes]:
    with path.open("rb") as stream:
        stream.seek(span.start)
        left = span.stop - span.start
        while block := stream.read(min(BLOCK_BYTES, left)):
            yield block
            left -= len(block)


def _refuse_binary(block: bytes, file: TextFile, *, compressed: bool) -> None:
    refuse_utf16(block, name=file.name, compressed=compressed)
    if (position := block.find(0)) >= 0:
        raise InputError(
            f"{file.name}: looks like a binary file (NUL byte at offset {position}); give it as UTF-8 text"
        )
