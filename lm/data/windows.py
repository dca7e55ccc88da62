"""Batches of text: windows of a token stream, optionally masked, and rows.

Rows are examples, labelled texts and conversations: one per row, in a new order in each epoch. Completions that a
decoder learns count as labels if there are 2 to 200 different ones of at most 100 characters, with five examples each
on average (`find_label_completions`). They are recorded in the run and used by `lm classify`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import IGNORE_INDEX, DataConfig, FilesConfig
from lm.corpus import SPLITS, Indices, Manifest, RaggedArray, Split, hash64, open_split
from lm.data import PADDING, Batch, TrainingData, length_batches, shuffle_samples, uniform
from lm.errors import InputError, UsageError
from lm.text import parse_label
from lm.text.find import find_text_files
from lm.text.text_file import TextFile
from lm.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.chat_template import require_mask_token

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch; the loss doesn't depend on it."""

_VALIDATION_SEED = 0
"""Validation masks are the same in every evaluation and for every seed."""

_MASKED_FRACTION, _REPLACED_FRACTION = 0.8, 0.1
"""Fractions of the predicted tokens that are masked, and replaced by random tokens; the rest is unchanged."""


class Masking:
    """Masks tokens as a pure function of rows and keys.

    Each token is selected with the same probability, and at least one per row. Special tokens are neither selected nor
    used as replacements.

    Source: Devlin et al. 2019, section 3.1; new masks in each epoch, Liu et al. 2019 (RoBERTa).
    """

    def __init__(self, tokenizer: Tokenizer, *, fraction: float) -> None:
        """Mask a fraction of the tokens of a tokenizer; UsageError if it has no mask token."""
        self._fraction, self._mask_id = fraction, require_mask_token(tokenizer)
        self._is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        self._is_ordinary[list(tokenizer.special_tokens.values())] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary)

    def batch(self, tokens: NDArray[np.int64], *, keys: Indices) -> Batch:
        """Return (rows, length) IDs as a batch with masked inputs and their targets; `keys` has one key per row."""
        length = tokens.shape[1]
        draws, replacement_draws, token_draws = np.split(uniform(keys, 3 * length), 3, axis=1)
        draws = draws + ~self._is_ordinary[tokens]  # special tokens are selected only if a row has no others
        chosen = draws < np.maximum(self._fraction, np.nextafter(draws.min(axis=1, keepdims=True), 3.0))
        others = self._ordinary_ids[(token_draws * len(self._ordinary_ids)).astype(np.int64)]
        is_replaced = replacement_draws < _MASKED_FRACTION + _REPLACED_FRACTION
        replaced = np.where(replacement_draws < _MASKED_FRACTION, self._mask_id, np.where(is_replaced, others, tokens))
        return Batch(
            inputs=np.where(chosen, replaced, tokens),
            targets=np.where(chosen, tokens, IGNORE_INDEX),
            input_lengths=np.full(len(tokens), length, dtype=np.int64),
        )


class Windows(TrainingData):
    """Windows of the training split, and the validation split in order.

    Each epoch visits disjoint windows once, in a new order and from a new offset. Masks depend on (seed, sample), so
    that they differ in each epoch.
    """

    def __init__(
        self,
        train: Split,
        validation: Split,
        *,
        context: int,
        rows: int,
        seed: int,
        masking: Masking | None = None,
    ) -> None:
        """Create batches of `rows` windows of context + 1 tokens, the last only as a target.

        Raises:
            InputError: the training split is too short.
        """
        if len(train) <= context:
            raise InputError(
                f"the training split has {len(train)} tokens, but one window takes {context + 1}: "
                "add text, or use a shorter context"
            )
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._seed, self._masking = seed, masking
        self.samples = max(1, len(train) // context - 1)
        self.tokens = self.samples * context
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = validation.bytes if len(validation) > 1 else 0

    def batch(self, consumed: int) -> Batch:
        samples = np.arange(consumed, consumed + self._rows, dtype=np.uint64)
        order, keys = shuffle_samples(samples, self.samples, self._seed)
        starts = order * self._context + (hash64(keys) % np.uint64(len(self._train) - self.tokens)).astype(np.int64)
        windows = [self._train.read(start, start + self._context + 1) for start in starts.tolist()]
        return self._make_batch(np.stack(windows), consumed, self._seed)

    def validation(self) -> Iterator[Batch]:
        """Yield disjoint windows that predict every token of the validation split but the first exactly once."""
        length, n_targets = self._context, max(0, len(self._validation) - 1)
        step = max(1, _EVALUATION_TOKENS // length) * length
        for start in range(0, n_targets, step):
            tokens = self._validation.read(start, min(start + step, n_targets) + 1)
            whole, rest = divmod(len(tokens) - 1, length)
            if whole:
                windows = tokens[np.arange(whole)[:, None] * length + np.arange(length + 1)]
                yield self._make_batch(windows, start // length, _VALIDATION_SEED)
            if rest:
                yield self._make_batch(tokens[None, whole * length :], start // length + whole, _VALIDATION_SEED)

    def _make_batch(self, windows: NDArray[np.int64], first: int, seed: int) -> Batch:
        """Return (rows, length + 1) tokens of consecutive samples as a batch."""
        if self._masking is None:
            return Batch(windows[:, :-1], windows[:, 1:])
        samples = np.arange(first, first + len(windows), dtype=np.uint64)
        keys = hash64(hash64(hash64(np.array([seed], dtype=np.uint64))) ^ samples)
        return self._masking.batch(windows[:, :-1], keys=keys)


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
        """Yield the validation split in buckets of similar length, shuffled so that the first ones are typical."""
        rows, used = max(1, _EVALUATION_TOKENS // self._context), self._used["validation"]
        batches = length_batches(self._validation.lengths[used], rows=rows)
        random.Random(0).shuffle(batches)
        for numbers in batches:
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
