"""Detect evaluation text that was training text of a run, for which scores mean little."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lm.checkpoint import LoadedModel
from lm.corpus.store import Split, open_split
from lm.corpus.survey import Hashes, hash_records
from lm.errors import InputError
from lm.evaluation.held_out import find_prepared_folder
from lm.evaluation.scoring import Scored
from lm.run_folder import find_checkpoint, load_config
from lm.text.records import Record
from lm.text.text_file import TextFile

_MAX_NAMED = 3


class ContaminationCheck:
    """Records scored text, and reports which files were training text.

    Nothing is reported of a run whose prepared data are gone.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._folder = loaded.folder
        self._hashes: dict[int, list[Hashes]] = defaultdict(list)
        self._train: Split | None = None
        with contextlib.suppress(InputError):
            self._train = open_split(find_prepared_folder(loaded.folder, loaded.config), "train")

    def watch(self, scored: Iterable[Scored]) -> Iterator[Scored]:
        """Pass scored tokens through and record their text."""
        for some in scored:
            piece = some.piece
            if some.first == 0 and (piece.record is None or piece.starts_document):
                self.add(piece.file, piece.record or Record.of_text(piece.text))
            yield some

    def watch_examples(self, files: Iterable[TextFile]) -> Iterator[Record]:
        """Yield the examples of files, and record them."""
        for number, file in enumerate(files):
            for example in file.records():
                self.add(number, example)
                yield example

    def add(self, file: int, record: Record) -> None:
        """Record an example or a sentence pair of a file, or a piece of its text."""
        if self._train is not None:
            self._hashes[file].append(hash_records([record], self._train.manifest.kind))

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return a warning for each contaminated file, up to a few."""
        seen = ((names[file], np.concatenate(hashes)) for file, hashes in self._hashes.items())
        said = [
            f"{name}: {part} was training text of {self._folder}; measure it on text that it has not seen"
            for name, hashes in seen
            if (part := _describe_seen(hashes, self._train))
        ]
        others = len(said) - _MAX_NAMED
        return [*said[:_MAX_NAMED], f"and {others:,} more files that were training text"] if others > 0 else said


def describe_seen_held_out(base: Path, folder: Path) -> str | None:
    """Return a warning if held-out text of a new run was training text of its base run.

    Args:
        base: run or checkpoint whose weights the new run starts from.
        folder: prepared data of the new run.
    """
    checkpoint = find_checkpoint(base)
    with contextlib.suppress(InputError):
        held_out = open_split(folder, "validation")
        train = open_split(find_prepared_folder(checkpoint, load_config(checkpoint)), "train")
        if held_out.documents and (part := _describe_seen(held_out.column("passages"), train)):
            seen = f"{part} was training text of {base}"
            return f"the held-out text: {seen}, so the validation loss is too low; hold out other text"
    return None


def _describe_seen(hashes: Hashes, train: Split | None) -> str | None:
    """Return how much of a text is training text; None if it isn't notable, or the prepared data are damaged."""
    with contextlib.suppress(InputError, OSError):
        if train is not None and train.is_notable(fraction := train.find_overlap(hashes)):
            return "all of it" if fraction >= 0.995 else f"{fraction:.0%} of it"
    return None
