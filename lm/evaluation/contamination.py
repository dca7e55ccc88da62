"""Detect evaluation text that was training text of a run, for which scores mean little."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lm.checkpoint import LoadedModel
from lm.corpus.overlap import MOST_PAIRS, Overlap, TrainingOverlap, measure_pair_overlap
from lm.corpus.store import open_split
from lm.errors import InputError
from lm.evaluation.held_out import find_prepared_folder
from lm.evaluation.scoring import Scored
from lm.run_folder import find_checkpoint, load_config
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer

_MAX_NAMED = 3


class ContaminationCheck:
    """Records scored text, and reports which files were training text.

    Nothing is reported of a run whose prepared data are gone.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._trained_on: Path | None = None
        with contextlib.suppress(InputError):
            self._trained_on = find_prepared_folder(loaded.folder, loaded.config)
        self._overlap = TrainingOverlap(loaded.tokenizer)
        self._pairs: dict[int, list[Record]] = defaultdict(list)

    def watch(self, scored: Iterable[Scored]) -> Iterator[Scored]:
        """Pass scored tokens through and record their text."""
        for some in scored:
            piece, record = some.piece, some.piece.record
            if some.first == 0 and self._trained_on:
                if isinstance(record, Record):
                    self.add_pair(piece.file, record)
                elif record is None:
                    self._overlap.add(piece.file, piece.tokens, starts_document=piece.starts_document)
                elif piece.starts_document:
                    self._overlap.add(piece.file, record, starts_document=True, is_framed=False)
            yield some

    def watch_examples(self, files: Iterable[TextFile]) -> Iterator[Record]:
        """Yield the examples of files, and record them."""
        for number, file in enumerate(files):
            for example in file.records():
                self.add_example(number, example)
                yield example

    def add_example(self, file: int, example: Record) -> None:
        """Record an example of a file, up to a limit."""
        if self._trained_on and not self._overlap.is_full:
            tokens = np.concatenate(self._loaded.tokenizer.encode_batch(example.texts))
            self._overlap.add(file, tokens, starts_document=True)

    def add_pair(self, file: int, pair: Record) -> None:
        """Record a sentence pair, up to a limit."""
        if len(self._pairs[file]) < MOST_PAIRS:
            self._pairs[file].append(pair)

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return a warning for each contaminated file, up to a few."""
        seen: dict[int, float] = {}
        with contextlib.suppress(InputError):
            if self._trained_on and self._loaded.config.model.translates:
                seen = _notable(measure_pair_overlap(self._trained_on, self._pairs))
            elif self._trained_on:
                seen = _notable(self._overlap.measure(open_split(self._trained_on, "train")))
        said = [
            f"{names[file]}: {_percent(part)} was training text of {self._loaded.folder}; measure it on text that it "
            "has not seen"
            for file, part in list(seen.items())[:_MAX_NAMED]
        ]
        others = len(seen) - len(said)
        return [*said, f"and {others:,} more files that were training text"] if others else said


def describe_seen_held_out(base: Path, folder: Path, tokenizer: Tokenizer) -> str | None:
    """Return a warning if held-out text of a new run was training text of its base run.

    Args:
        base: run or checkpoint whose weights the new run starts from.
        folder: prepared text or examples of the new run.
    """
    overlap, checkpoint = TrainingOverlap(tokenizer), find_checkpoint(base)
    with contextlib.suppress(InputError):
        overlap.add_split(0, open_split(folder, "validation"))
        trained_on = find_prepared_folder(checkpoint, load_config(checkpoint))
        for fraction in _notable(overlap.measure(open_split(trained_on, "train"))).values():
            seen = f"{_percent(fraction)} was training text of {base}"
            return f"the held-out text: {seen}, so the validation loss is too low; hold out other text"
    return None


def _notable(overlaps: Mapping[int, Overlap]) -> dict[int, float]:
    """Return the fraction of each file that is notably in the training split."""
    return {file: overlap.fraction for file, overlap in overlaps.items() if overlap.is_notable}


def _percent(fraction: float) -> str:
    return "all of it" if fraction >= 0.995 else f"{fraction:.0%} of it"
