"""Detect evaluation text that was training text of the run, for which scores mean little."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from lm.checkpoint import LoadedModel
from lm.corpus.overlap import TrainingOverlap
from lm.errors import InputError
from lm.evaluation.file_scoring import ScoredSegment
from lm.evaluation.held_out import find_prepared_folder
from lm.text.examples import Example
from lm.text.files import TextFile

_MIN_FRACTION = 0.01
"""Minimum fraction for a warning; less may be boilerplate such as a licence."""

_MAX_NAMED = 3
_EXAMPLES_AT_ONCE = 1024


class ContaminationCheck:
    """Records scored text, and reports which files were training text; nothing if the tokens of the run are gone."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._overlap: TrainingOverlap | None = None
        with contextlib.suppress(InputError):
            self._overlap = TrainingOverlap(find_prepared_folder(loaded), loaded.tokenizer)

    @classmethod
    def of_examples(cls, loaded: LoadedModel, files: Sequence[TextFile]) -> list[str]:
        """Return the warnings for files of examples; see `warnings`."""
        check = cls(loaded)
        for number, file in enumerate(files):
            check.add_examples(number, file.examples())
        return check.warnings([file.name for file in files])

    def watch(self, segments: Iterable[ScoredSegment]) -> Iterator[ScoredSegment]:
        """Pass segments through and record them."""
        for segment in segments:
            self.add_passage(segment)
            yield segment

    def add_passage(self, segment: ScoredSegment) -> None:
        """Record the piece of its first segment."""
        piece = segment.piece
        if self._overlap is not None and segment.first == 0:
            self._overlap.add(piece.file, piece.tokens, starts_document=piece.text_piece.starts_document)

    def add_examples(self, file: int, examples: Iterable[Example]) -> None:
        """Record examples of a file, up to a limit."""
        rows = iter(examples)
        while self._overlap is not None and not self._overlap.is_full:
            some = list(islice(rows, _EXAMPLES_AT_ONCE))
            if not some:
                return
            texts = [text for example in some for text in (example.prompt, example.completion)]
            encoded = self._loaded.tokenizer.encode_batch(texts)
            for prompt, completion in zip(encoded[::2], encoded[1::2], strict=True):
                self._overlap.add(file, np.concatenate([prompt, completion]), starts_document=True)

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return a warning for each contaminated file, up to a few.

        Args:
            names: of the files, in order.
        """
        found: dict[int, float] = {}
        if self._overlap is not None:
            with contextlib.suppress(InputError):
                found = {file: part for file, part in self._overlap.fractions().items() if part >= _MIN_FRACTION}
        run = self._loaded.folder
        said = [
            f"{names[file]}: {_percent(part)} was training text of {run}; measure it on text that it has not seen"
            for file, part in list(found.items())[:_MAX_NAMED]
        ]
        others = len(found) - len(said)
        return [*said, f"and {others:,} more files that were training text"] if others else said


def _percent(fraction: float) -> str:
    return "all of it" if fraction >= 0.995 else f"{fraction:.0%} of it"
