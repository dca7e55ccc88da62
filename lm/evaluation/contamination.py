"""Detect evaluation text that was training text of a run, for which scores mean little."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lm.checkpoint import LoadedModel
from lm.corpus.encode import encode
from lm.corpus.overlap import Overlap, TrainingOverlap, measure_pair_overlap
from lm.corpus.store import open_split
from lm.data.bucketing import batched
from lm.errors import InputError
from lm.evaluation.file_scoring import ScoredSegment
from lm.evaluation.held_out import find_prepared_folder
from lm.run_folder import find_checkpoint, load_config
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer

_MAX_NAMED = 3
_EXAMPLES_AT_ONCE = 1024


class ContaminationCheck:
    """Records scored text, and reports which files were training text.

    Nothing is reported of a run whose prepared data are gone.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._trained_on: Path | None = None
        with contextlib.suppress(InputError):
            self._trained_on = find_prepared_folder(loaded.folder, loaded.config)
        self._overlap = TrainingOverlap(loaded.tokenizer) if self._trained_on else None
        self._pairs: list[Iterable[Record]] = []

    @classmethod
    def of_examples(cls, loaded: LoadedModel, files: Sequence[TextFile]) -> list[str]:
        check = cls(loaded)
        for number, file in enumerate(files):
            check.add_rows(number, file.records())
        return check.warnings([file.name for file in files])

    def watch(self, segments: Iterable[ScoredSegment]) -> Iterator[ScoredSegment]:
        """Pass segments through and record them."""
        for segment in segments:
            self.add_piece(segment)
            yield segment

    def add_piece(self, segment: ScoredSegment) -> None:
        """Record the piece of its first segment."""
        piece = segment.piece
        if self._overlap is not None and segment.first == 0:
            self._overlap.add(piece.file, piece.tokens, starts_document=piece.record.starts)

    def add_rows(self, file: int, rows: Iterable[Record]) -> None:
        """Record examples or conversations of a file, up to a limit."""
        for chunk in batched(rows, _EXAMPLES_AT_ONCE):
            if self._overlap is None or self._overlap.is_full:
                return
            for encoded in encode(chunk, (self._loaded.tokenizer, None)):
                self._overlap.add(file, encoded.tokens, starts_document=True, is_framed=False)

    def add_pairs(self, pairs: Iterable[Record]) -> None:
        """Record the sentence pairs of the next file."""
        self._pairs.append(pairs)

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return a warning for each contaminated file, up to a few."""
        if self._trained_on is None or self._overlap is None:
            return []
        seen, run = {}, self._loaded.folder
        with contextlib.suppress(InputError):
            if self._loaded.config.model.translates:
                seen = _notable(measure_pair_overlap(self._trained_on, self._pairs))
            else:
                seen = _notable(self._overlap.measure(open_split(self._trained_on, "train")))
        said = [
            f"{names[file]}: {_percent(part)} was training text of {run}; measure it on text that it has not seen"
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
