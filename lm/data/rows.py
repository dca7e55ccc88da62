"""Examples, labelled texts and conversations as batches: one per row, in a new order in each epoch.

Completions that a decoder learns count as labels if there are 2 to 200 different ones of at most 100 characters, with
five examples each on average (`find_label_completions`). They are recorded in the run and used by `lm classify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import DataConfig, FilesConfig
from lm.corpus.ragged import RaggedArray
from lm.corpus.store import SPLITS, Manifest, Split, open_split
from lm.data.batch import PADDING, Batch, TrainingData, length_batches, shuffle_samples
from lm.errors import InputError, UsageError
from lm.text.find import find_text_files
from lm.text.records import parse_label
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch, including padding; the loss doesn't depend on it."""


_MAX_LABELS, _MAX_LABEL_LENGTH, _MIN_EXAMPLES = 200, 100, 5
"""Limits of completions that are labels: number, characters, and mean number of examples of each."""


class Rows(TrainingData):
    """Rows truncated to the context: prompts from the left, texts with labels and conversations from the right.

    Completions of examples, replies of conversations and labels of texts are learned. A row of which nothing is learned
    within the context is left out.
    """

    def __init__(
        self, train: Split, validation: Split, *, context: int, rows: int, seed: int, labels: Sequence[str] = ()
    ) -> None:
        """Create batches of `rows` rows.

        Args:
            labels: of a classifier, for which the label is the only target of a text.

        Raises:
            InputError: nothing is learned within the context, or an example has none of the labels.
        """
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self.holds_conversations = train.manifest.kind == "conversations"
        self._seed, splits = seed, (train, validation)
        self._labels = {split.name: label_indices(split, labels) for split in splits} if labels else {}
        learned, sizes = zip(*map(self._count, splits), strict=True)
        self._used = {split.name: np.flatnonzero(count) for split, count in zip(splits, learned, strict=True)}
        self.samples = len(self._used["train"])
        if not self.samples:
            raise InputError(f"nothing that is learned fits into the context of {context} tokens")
        self.steps_per_epoch = self.samples / rows
        self.tokens, self.validation_bytes = int(learned[0].sum()), int(sizes[1].sum())
        if labels:
            lengths = train.lengths[self._used["train"]] - learned[0] + 1
            self.tokens = int(np.minimum(lengths, context).sum())

    def batch(self, consumed: int) -> Batch:
        """Return the rows after `consumed` ones; a batch may cross the end of an epoch."""
        samples = np.arange(consumed, consumed + self._rows, dtype=np.uint64)
        order, _ = shuffle_samples(samples, self.samples, self._seed)
        return self._make_batch(self._train, self._used["train"][order])

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, bucketed by length."""
        rows, used = max(1, _EVALUATION_TOKENS // self._context), self._used["validation"]
        for numbers in length_batches(self._validation.lengths[used], rows=rows):
            yield self._make_batch(self._validation, used[numbers])

    def _count(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows,) learned tokens of each row within the context, and their UTF-8 bytes."""
        learned, sizes = (np.array(split.column(name), dtype=np.int64) for name in ("learned", "bytes"))
        if self.holds_conversations:
            for row in np.flatnonzero(split.lengths > self._context + 1).tolist():
                inside = split.take(np.array([row]), "replies").values[: self._context + 1]
                learned[row], sizes[row] = (inside >= 0).sum(), inside.clip(0).sum()
        elif not self._labels:
            learned[learned > self._context] = 0
        return learned, sizes * (learned > 0)

    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        taken, context = split.take(numbers), self._context
        rows, learned = [taken.row(row) for row in range(len(taken))], split.column("learned")[numbers].tolist()
        if self._labels:
            texts = [np.append(ids[:-count], ids[-1]) for ids, count in zip(rows, learned, strict=True)]
            inputs = RaggedArray.from_rows([truncate_text(ids, context=context) for ids in texts])
            targets = self._labels[split.name][numbers][:, None]
            return Batch(inputs.to_padded(PADDING), targets, input_lengths=inputs.lengths())
        if self.holds_conversations:
            replies = split.take(numbers, "replies")
            masks = [replies.row(row)[: context + 1] >= 0 for row in range(len(rows))]
            return Batch.from_rows([ids[: context + 1] for ids in rows], masks)
        masks = [np.arange(-len(ids), 0) >= -count for ids, count in zip(rows, learned, strict=True)]
        return Batch.from_rows(*([truncate_prompt(row, context=context) for row in each] for each in (rows, masks)))


def truncate_prompt(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """Truncate an example to the context by removing the beginning of its prompt.

    Args:
        ids: (tokens,) start, prompt, completion, end; the start is kept.
        context: tokens that the model reads; a row may have one more, which is only predicted.
    """
    return ids if len(ids) <= context + 1 else np.concatenate([ids[:1], ids[-context:]])


def truncate_text(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """Truncate a text to `context` tokens; its end token is kept."""
    return ids if len(ids) <= context else np.concatenate([ids[: context - 1], ids[-1:]])


def completion_length_error(learned: int, *, context: int) -> str | None:
    """Return an error message for a completion, its end token included, that does not fit, else None."""
    if learned <= context:
        return None
    return f"the completion is {learned - 1} tokens, and with its end does not fit into the context of {context}"


def _read_labels(split: Split) -> list[str]:
    """Return the label of each example; UsageError if there are too many different ones."""
    if (completions := split.completions()) is None:
        raise UsageError(
            "the examples have too many different completions to be labels: a classifier chooses among few"
        )
    return [*map(parse_label, completions)]


def load_labels(folder: Path) -> tuple[str, ...]:
    """Return the labels of all examples in a folder, sorted.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: there are too many different labels.
    """
    return tuple(sorted({label for split in SPLITS for label in _read_labels(open_split(folder, split))}))


def find_label_completions(folder: Path) -> tuple[str, ...]:
    """Return the completions of the examples in a folder, sorted, if they are labels; else none.

    They are labels if they are few, short and frequent, and differ in their tokens.
    """
    if Manifest.read(folder).kind != "examples":
        return ()
    counts = Counter[str]()
    for split in SPLITS:
        if (found := open_split(folder, split).completions()) is None:
            return ()
        counts.update(found)
    completions, labels = tuple(sorted(counts, key=parse_label)), {*map(parse_label, counts)}
    are_few = 2 <= len(labels) == len(completions) <= min(_MAX_LABELS, counts.total() / _MIN_EXAMPLES)
    if not are_few or max(map(len, labels)) > _MAX_LABEL_LENGTH:
        return ()
    encoded = Tokenizer.load(folder / FILE_NAME).encode_batch(list(completions))
    return completions if len({ids.tobytes() for ids in encoded}) == len(completions) else ()


def label_indices(split: Split, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return (examples,) label indices of a split; InputError if an example has none of these labels."""
    indices = {label: number for number, label in enumerate(labels)}
    try:
        return np.array([indices[label] for label in _read_labels(split)], dtype=np.int64)
    except KeyError:
        raise InputError(
            "the examples have labels that the model has not learned; name the corpus of the run"
        ) from None


def find_examples(names: Sequence[str], data: DataConfig, reading: FilesConfig | None = None) -> list[TextFile]:
    """Return files of examples, with labels in the column `label` if none is named; InputError for others."""
    files = find_text_files(names, data, reading)
    if any(file.kind != "examples" for file in files):
        files = find_text_files(names, data.replace(label_column=data.label_column or "label"), reading)
    for file in files:
        if file.kind != "examples":
            raise InputError(f"{file.name}: holds {file.kind}, not examples")
    return files


def read_completions(name: str, data: DataConfig) -> tuple[str, ...]:
    """Return the different completions of a file of examples, sorted by label; InputError if it has none."""
    files = find_examples([name], data)
    completions = {record.parts[-1].text for file in files for record in file.records()}
    return tuple(sorted(completions, key=parse_label))
