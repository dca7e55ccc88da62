"""Text files, folders, globs and stdin as documents, streamed in bounded memory.

Files may be compressed (see `compression`). A file named `.jsonl` or `.ndjson` has a document a line: the text in one
field of a JSON object (see `json_lines`); so has stdin if its first line is such an object. Where examples to learn
from are asked for, any file has one of them a line (see `examples`), and as a document it is their texts joined.

Any other text file is one document, unless it has separator lines: a line that is exactly the separator, ended by a
line feed, by carriage return and line feed, or by the end of the file. A separator line ends a document and belongs to
none, its own line end included; the line end before it stays with the document that it ends. Everything else is kept
as it is: line ends of any kind, white space, a byte order mark. Documents without a single character are dropped.
"""

from __future__ import annotations

import codecs
import dataclasses
import glob
import hashlib
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import IO, BinaryIO

from lm.errors import InputError
from lm.text import encodings, examples, json_lines
from lm.text.compression import blocks, compression, without_suffix

STDIN = "-"
SUFFIXES = (".txt", ".text", ".md", *json_lines.SUFFIXES)
"""What is taken of a folder, compressed or not; files named one by one, or by a glob, may have any suffix."""

FIELD = "text"
"""What holds the text in JSON Lines, unless something else is named."""

BLOCK_BYTES = 1 << 18

_LONGEST_FIRST_LINE = 1 << 24


@dataclass(frozen=True)
class Source:
    """One file of a corpus.

    Attributes:
        name: what the user calls it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        field: what holds the text, in JSON Lines.
        supervised: whether each line is an example to learn from, a prompt and its completion.
    """

    name: str
    path: Path
    field: str = FIELD
    supervised: bool = False
    spool: IO[bytes] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # deleted with the last Source that holds it

    @cached_property
    def holds_examples(self) -> bool:
        """Whether its first line is an example, in JSON Lines by its name or from a pipe."""
        named = without_suffix(self.name).lower().endswith(json_lines.SUFFIXES)
        return (named or self.spool is not None) and examples.is_example(_first_line(self))

    @cached_property
    def is_json_lines(self) -> bool:
        """Whether it has a document a line: its name says so, or it comes from a pipe and its first line is so."""
        if without_suffix(self.name).lower().endswith(json_lines.SUFFIXES):
            return True
        return self.spool is not None and json_lines.is_document(_first_line(self), self.field)


@dataclass(frozen=True)
class Fragment:
    """Part of a document: never empty, and of bounded size."""

    text: str
    starts_document: bool


@dataclass(frozen=True)
class Survey:
    """What one pass over a source finds.

    Attributes:
        source: the source.
        sha256: of the file's bytes, decompressed.
        size: how many these are.
        documents: documents in it.
        bytes: UTF-8 bytes of their text; the separators are not counted.
    """

    source: Source
    sha256: str
    size: int
    documents: int
    bytes: int

    @property
    def identity(self) -> str:
        """What its documents follow from: the bytes and, for JSON Lines, what is read of each line."""
        if self.source.supervised:
            return f"{self.sha256} {' '.join(examples.FIELDS)}"
        return f"{self.sha256} {self.source.field}" if self.source.is_json_lines else self.sha256


def resolve(patterns: Sequence[str], *, field: str = FIELD, supervised: bool = False) -> list[Source]:
    """The files that files, folders, globs and `-` (stdin) stand for, each once, in the order given.

    A folder stands for the files with a suffix of `SUFFIXES` in it and below, in the order of their paths; hidden ones
    are skipped; for examples only those of JSON Lines count. A glob (`**` goes into folders) stands for the files it
    matches.

    Args:
        patterns: as a user gives them.
        field: what holds the text in JSON Lines.
        supervised: whether each line of the files is an example to learn from.

    Raises:
        InputError: a file is missing, or a folder or glob holds no text file.
    """
    sources: dict[Path, Source] = {}
    for pattern in patterns:
        for source in _resolve(pattern, json_lines.SUFFIXES if supervised else SUFFIXES):
            found = dataclasses.replace(source, field=field, supervised=supervised)
            sources.setdefault(source.path.resolve(), found)
    return list(sources.values())


def text_size(sources: Iterable[Source]) -> int | None:
    """Bytes of text in all, told by the files' sizes; None where those say something else: compressed, JSON Lines."""
    size = 0
    for source in sources:
        if source.supervised or source.is_json_lines or compression(source.path, source.name):
            return None
        size += source.path.stat().st_size
    return size


def _resolve(pattern: str, suffixes: tuple[str, ...]) -> list[Source]:
    path = Path(pattern)
    if pattern == STDIN:
        return [_spool_once(sys.stdin.buffer)]
    if path.is_dir():
        return _in_folder(path, suffixes)
    if path.is_file():
        return [Source(pattern, path)]
    if path.exists():  # a pipe, as the shell's <(command) makes one, can be read only once
        return [_spool_pipe(path, path.stat().st_ino)]
    if not glob.has_magic(pattern):
        raise InputError(f"{pattern}: no such file or folder")
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 (may be absolute)
    sources = [Source(str(match), match) for match in matches if match.is_file()]
    if not sources:
        raise InputError(f"{pattern}: no file matches")
    return sources


def _in_folder(folder: Path, suffixes: tuple[str, ...]) -> list[Source]:
    below = (path for path in sorted(folder.rglob("*")) if _is_text(path, suffixes) and path.is_file())
    shown = [path for path in below if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not shown:
        raise InputError(f"{folder}: no {', '.join(suffixes)} file in this folder; name other files one by one")
    return [Source(str(path), path) for path in shown]


def _is_text(path: Path, suffixes: tuple[str, ...]) -> bool:
    """By the name: `a.txt`, `a.txt.gz` and `a.gz` are text, `a.tar.gz` is not."""
    inner = without_suffix(path.name)
    return Path(inner).suffix.lower() in (suffixes if inner == path.name else (*suffixes, ""))


@lru_cache(maxsize=1)
def _spool_once(stdin: BinaryIO) -> Source:
    """Stdin, which ends after it was read, however often it is asked for."""
    return _spool(stdin, "stdin")


@cache
def _spool_pipe(path: Path, _inode: int) -> Source:
    """A pipe, which is empty after it was read, however often it is asked for; another has an inode of its own."""
    with path.open("rb") as stream:
        return _spool(stream, str(path))


def _spool(stream: BinaryIO, name: str) -> Source:
    spool = tempfile.NamedTemporaryFile(prefix="lm-stdin-")  # noqa: SIM115 (it lives as long as its Source)
    while block := stream.read(BLOCK_BYTES):
        spool.write(block)
    spool.flush()
    return Source(name, Path(spool.name), spool=spool)


def _first_line(source: Source) -> bytes:
    kind, beginning = compression(source.path, source.name), b""
    for block in blocks(source.path, kind, BLOCK_BYTES, name=source.name):
        beginning += block
        if b"\n" in block or len(beginning) > _LONGEST_FIRST_LINE:
            break
    return beginning.partition(b"\n")[0]


def survey(source: Source, separator: str) -> Survey:
    """Read a source once, from start to end: its hash, and how much text there is.

    Raises:
        InputError: it is not a UTF-8 text file.
    """
    digest = hashlib.sha256()
    documents = text_bytes = size = 0

    def observe(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)

    for fragment in fragments(source, separator, observe=observe):
        documents += fragment.starts_document
        text_bytes += len(fragment.text.encode())
    return Survey(source, digest.hexdigest(), size, documents, text_bytes)


def fragments(source: Source, separator: str, *, observe: Callable[[bytes], None] | None = None) -> Iterator[Fragment]:
    """The documents of a source, in fragments of at most a few hundred kilobytes, cut anywhere.

    Args:
        source: the file.
        separator: the line that ends a document, where it is not JSON Lines.
        observe: called with each block of the file's bytes, decompressed, as it is read.

    Raises:
        InputError: the source is not a UTF-8 text file, or is damaged.
    """
    text_blocks = decoded(source, observe)
    if source.supervised or source.is_json_lines:
        for text in _texts(text_blocks, source):
            for start in range(0, len(text), BLOCK_BYTES):
                yield Fragment(text[start : start + BLOCK_BYTES], starts_document=start == 0)
        return
    starts = True
    for part in _separated(text_blocks, separator):
        if part is None:
            starts = True
        elif part:
            yield Fragment(part, starts)
            starts = False


def _texts(blocks: Iterable[str], source: Source) -> Iterator[str]:
    """The documents of a source that has one a line."""
    if source.supervised:
        return (example.prompt + example.completion for example in examples.examples(blocks, name=source.name))
    return json_lines.texts(blocks, source.field, name=source.name)


def decoded(source: Source, observe: Callable[[bytes], None] | None = None) -> Iterator[str]:
    """The text of a file, in blocks.

    Args:
        source: the file.
        observe: called with each block of the file's bytes, decompressed, as it is read.

    Raises:
        InputError: the source is not a UTF-8 text file, or is damaged.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    kind = compression(source.path, source.name)
    offset = 0
    for block in itertools.chain(blocks(source.path, kind, BLOCK_BYTES, name=source.name), [b""]):
        if observe:
            observe(block)
        if offset == 0:
            _refuse_binary(block, source, compressed=bool(kind))
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            wrong = offset - pending + error.start
            raise encodings.not_utf8(error, name=source.name, offset=wrong, compressed=bool(kind)) from None
        yield text
        offset += len(block)


def _refuse_binary(block: bytes, source: Source, *, compressed: bool) -> None:
    encodings.refuse_utf16(block, name=source.name, compressed=compressed)
    if (position := block.find(0)) >= 0:
        raise InputError(
            f"{source.name}: looks like a binary file (NUL byte at offset {position}); give it as UTF-8 text"
        )


def _separated(blocks: Iterable[str], separator: str) -> Iterator[str | None]:
    """The text of the blocks with None for each separator line."""
    line = re.compile(rf"{re.escape(separator)}\r?\n")  # what starts a line is checked below: a lookbehind is slow
    unsure = len(separator) + 1  # a separator line that is not complete yet can be this long
    before = "\n"  # the character before `rest`; a file starts with a line
    rest = ""
    for block in blocks:
        buffer, start = before + rest + block, 1
        for match in line.finditer(buffer, 1):
            if buffer[match.start() - 1] == "\n":
                yield buffer[start : match.start()]
                yield None
                start = match.end()
        end = max(start, len(buffer) - unsure)
        yield buffer[start:end]
        before, rest = buffer[end - 1], buffer[end:]
    last = (before + rest).removesuffix("\r")
    yield rest[: len(last) - 1 - len(separator)] if last.endswith("\n" + separator) else rest
