"""What is scored: files, or the held-out split of a run; and a warning if it was training text of the run."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from lm.checkpoint import LoadedModel
from lm.config.run_config import DataKind, FilesConfig, RunConfig
from lm.corpus.store import Manifest, Split, open_split, read_held_out, verify_checksums
from lm.corpus.survey import Hashes, hash_records
from lm.data.rows import find_examples
from lm.errors import InputError, UsageError, list_some
from lm.evaluation.scoring import Scored, ScoredTexts
from lm.run_folder import find_checkpoint, load_config
from lm.text.find import find_text_files
from lm.text.records import Record, parse_messages
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer

_BLOCK = 1 << 24  # tokens searched at once for the ends of documents
_ADVICE = "name text to measure it on, or prepare its corpus again"
_MAX_NAMED = 3


def find_prepared_folder(checkpoint: Path, config: RunConfig) -> Path:
    """Return the prepared data of a run; InputError if they are gone, or the model was imported."""
    plan = config.plan
    if plan is None:
        raise InputError(f"{checkpoint}: not trained here, so nothing is held out; name text to measure it on")
    folder = Path(plan.data)
    if not folder.is_dir() or Manifest.read(folder).key != plan.data_key:
        raise InputError(f"{folder}: the prepared tokens of this run are gone; {_ADVICE}")
    return folder


@dataclass(frozen=True)
class HeldOut:
    """The held-out split of prepared data, as a file of the kind that it was made from."""

    folder: Path
    tokenizer: Tokenizer
    kind: DataKind
    languages: tuple[str | None, str | None]
    heads: Literal[True] | None

    name: ClassVar[str] = "held-out"
    notes: ClassVar[Sequence[str]] = ()

    def records(self) -> Iterator[Record]:
        """Yield its documents, decoded, or its rows."""
        for line, row in enumerate(read_held_out(self.folder), 1):
            if "source" in row:
                heads = tuple(row["heads"]) if self.heads else None
                yield Record.of_pair(row["source"], row["target"], line=line)._replace(dependency_heads=heads)
            elif "messages" in row:
                yield Record(parse_messages(row["messages"]), line=line)
            else:
                yield Record.of_example(row["prompt"], row["completion"], line=line)
        split = open_split(self.folder, "validation")
        if split.manifest.kind != "text":
            return
        frame, edges = [self.tokenizer.start_of_text, self.tokenizer.end_of_text], [-1]
        for start in range(0, len(split), _BLOCK):
            tokens = split.read(start, min(start + _BLOCK, len(split)))
            edges += (start + np.flatnonzero(np.isin(tokens, [token for token in frame if token is not None]))).tolist()
        for before, end in itertools.pairwise([*edges, len(split)]):
            if end > before + 1:
                yield Record.of_text(self.tokenizer.decode(split.read(before + 1, end)))


def open_held_out(loaded: LoadedModel) -> ScoredTexts:
    """Return the held-out documents, examples, conversations or sentence pairs of a run.

    Raises:
        InputError: nothing was held out, or the prepared tokens are gone or damaged.
    """
    folder = find_prepared_folder(loaded.folder, loaded.config)
    manifest = Manifest.read(folder)
    verify_checksums(folder, manifest.sha256)
    if not manifest.splits["validation"].tokens:
        raise InputError(f"{loaded.folder}: this run held nothing out; name text to measure it on")
    heads: Literal[True] | None = True if manifest.has_dependency_heads else None
    return ScoredTexts([HeldOut(folder, loaded.tokenizer, manifest.kind, manifest.languages, heads)])


def open_texts(
    loaded: LoadedModel,
    names: Sequence[str],
    reading: FilesConfig,
    data: Mapping[str, Any],
    *,
    kind: Literal["examples"] | None = None,
) -> ScoredTexts:
    """Return files to score by a run, or without any what it held out.

    Args:
        names: files, folders and globs.
        data: settings of `DataConfig` that differ from those of the run.
        kind: what files hold [default: the text of files, the completions of examples, or replies of conversations].

    Raises:
        InputError: a file is missing, or not of the kind; or as of `open_held_out`.
        UsageError: the model scores no such texts, or the files are of different kinds.
    """
    if not names:
        return open_held_out(loaded)
    config = loaded.config.data.for_other_files(**data)
    files = (find_examples if kind == "examples" else find_text_files)(names, config, reading)
    if kind is None:
        check_kinds(loaded, files)
    return ScoredTexts(files)


def check_kinds(loaded: LoadedModel, files: Sequence[TextFile]) -> None:
    """Raise UsageError unless a run scores what files hold, and that is of one kind."""
    config, kinds = loaded.config, sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise UsageError(f"the files hold {' and '.join(kinds)}; measure them separately")
    if config.model.translates or config.model.labels or (config.model.is_masked and kinds != ["text"]):
        raise UsageError(f"{loaded.folder}: this run {config.purpose}; it does not score {kinds[0]}")
    if kinds == ["conversations"] and loaded.tokenizer.chat_template is None:
        raise UsageError(f"{loaded.folder}: has no chat template, so it cannot score conversations; train it on some")


class ContaminationCheck:
    """Records scored text, and tells which files were training text of a run, for which scores mean little.

    Nothing is told of a run whose prepared data are gone.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._folder = loaded.folder
        self._hashes: dict[int, list[Hashes]] = defaultdict(list)
        self._train: Split | None = None
        with contextlib.suppress(InputError):
            self._train = open_split(find_prepared_folder(loaded.folder, loaded.config), "train")

    def watch(self, scored: Iterable[Scored]) -> Iterator[Scored]:
        """Pass scored texts through and record them."""
        for some in scored:
            if some.record is None or some.starts:
                self.add(some.file, some.record or Record.of_text(some.text))
            yield some

    def watch_records(self, files: Iterable[Any]) -> Iterator[Record]:
        """Yield the records of files, and record them."""
        for number, file in enumerate(files):
            for record in file.records():
                self.add(number, record)
                yield record

    def add(self, file: int, record: Record) -> None:
        """Record an example or a sentence pair of a file, or a piece of its text."""
        if self._train is not None:
            self._hashes[file].append(hash_records([record], self._train.manifest.kind))

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return a warning if files are contaminated."""
        found = ((file, np.concatenate(hashes)) for file, hashes in self._hashes.items())
        seen = {names[file]: _notable(hashes, self._train) for file, hashes in found}
        some = list_some([f"{name} ({fraction:.0%})" for name, fraction in seen.items() if fraction], limit=_MAX_NAMED)
        return [f"{some}: training text of {self._folder}; measure other text"] if some else []


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
        if held_out.documents and (fraction := _notable(held_out.column("passages"), train)):
            return f"{fraction:.0%} of the held-out text was training text of {base}: the validation loss is too low"
    return None


def _notable(hashes: Hashes, train: Split | None) -> float | None:
    """Return how much of a text is training text; None if it isn't notable, or the prepared data are damaged."""
    with contextlib.suppress(InputError, OSError):
        if train is not None and train.is_notable(fraction := train.find_overlap(hashes)):
            return fraction
    return None
