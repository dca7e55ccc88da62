"""Reads lines to translate and writes translations: line n of the output is the translation of line n of the input."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.progress import SpinnerColumn, TextColumn

from cli.arguments import STDIN, read_input_lines
from cli.console.escapes import escape_for_stream, format_json_line
from cli.console.messages import print_labelled, print_note
from cli.console.numbers import format_duration, format_number_of
from cli.console.progress import NOTE_SECONDS, create_progress
from lm.decoding.translation import TranslatedLine
from lm.errors import UsageError
from lm.text.decode import read_file_lines
from lm.text.dependency_trees import DependencyHeads, attach_heads


def read_lines_with_heads(
    files: Sequence[Path], heads: Sequence[Path]
) -> tuple[Iterator[str], Iterator[DependencyHeads]]:
    """Read the lines of files or stdin, and the dependency heads of their words, from one file each."""
    files = files or [STDIN]
    if len(files) != len(heads):
        raise UsageError(
            f"{len(files)} files to translate and {len(heads)} files of heads: give one for each (--dependency-heads)"
        )
    parsed = (
        pair
        for file, heads_file in zip(files, heads, strict=True)
        for pair in attach_heads(
            read_input_lines([file]), read_file_lines(heads_file), sentence=str, names=(str(file), str(heads_file))
        )
    )
    lines, trees = itertools.tee(parsed)
    return (line for line, _ in lines), (tree for _, tree in trees)


def warn_of_tabs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; warn of the first one with a tab, as in a table of sources and targets."""
    has_warned = False
    for number, line in enumerate(lines, 1):
        if "\t" in line and not has_warned:
            has_warned = True
            print_labelled("warning", f"line {number} has a tab: whole lines are translated; cut out the sources first")
        yield line


def read_prefixes(prefix: str | None, file: Path | None) -> Iterable[str] | None:
    """Read the prefixes of translations: the same for all, or line by line from a file."""
    if file is not None:
        return read_file_lines(file)
    return None if prefix is None else itertools.repeat(prefix)


def write_translations(stream: IO[str], number: int, result: TranslatedLine, *, n_best: int, as_json: bool) -> None:
    """Write the translations of a line, as `n_best` lines (missing ones blank) or as one line of JSON; flush stdout."""
    if result.left_out:
        print_note(
            f"line {number}: its last {result.left_out} tokens were not read: the line is too long for the model"
        )
    if as_json:
        translations = [dataclasses.asdict(translation) for translation in result.translations]
        print(format_json_line({"line": number, "source": result.source, "translations": translations}), file=stream)
    else:
        texts = [translation.text for translation in result.translations]
        blank = [""] * (n_best - len(texts))
        stream.writelines(escape_for_stream(text, stream) + "\n" for text in [*texts, *blank])
    if stream is sys.stdout:
        stream.flush()


def with_progress(results: Iterable[TranslatedLine], *, shown: bool) -> Iterator[TranslatedLine]:
    """Yield the results; show their number and speed on stderr, as a bar on a terminal, else a line now and then."""
    has_bar = shown and sys.stderr.isatty() and not sys.stdout.isatty()
    start = noted = time.perf_counter()
    number = 0
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} lines"), TextColumn("{task.fields[speed]}"))
    with create_progress(*columns, hidden=not has_bar) as bar:
        task = bar.add_task("", total=None, speed="")
        for number, result in enumerate(results, 1):
            yield result
            now = time.perf_counter()
            speed = f"{number / (now - start):.1f} lines/s"
            bar.update(task, completed=number, speed=speed)
            if shown and not has_bar and now - noted > NOTE_SECONDS:
                noted = now
                print_note(f"{format_number_of(number, 'line')}, {speed}")
    if shown and number and (has_bar or noted > start):
        print_note(f"{format_number_of(number, 'line')} in {format_duration(time.perf_counter() - start)}, {speed}")
