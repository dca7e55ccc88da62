"""Labels in prepared examples: how many have each, which completions are labels, and batches for masked classifiers.

A decoder learns completions of any kind. They are labels, which are recorded in its run, scored in evaluations and
chosen among by `lm classify`, where there are 2 to 200 different ones of at most 100 bytes, with five examples each on
average (`label_completions`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import DataConfig
from lm.config.run import RunConfig
from lm.corpus.examples import StoredExamples, open_examples
from lm.corpus.manifest import SPLITS
from lm.corpus.shards import read_manifest
from lm.data.batch import Batch, batch_rows
from lm.data.examples import ExampleData, beginning
from lm.errors import Advice, InputError, UsageError
from lm.text.examples import LABEL_DELIMITER, parse_label
from lm.text.files import find_text_files
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_MOST_LABELS, _LONGEST_LABEL, _FEWEST_EXAMPLES = 200, 100, 5
"""Of completions that are labels: how many, the bytes of one, and examples of each on average."""


class LabelledData(ExampleData):
    """Training data of a classifier: each text is a row, read whole or from its beginning, and has one target."""

    def __init__(
        self,
        train: StoredExamples,
        validation: StoredExamples,
        *,
        context: int,
        rows: int,
        seed: int,
        labels: Sequence[str],
        tokenizer: Tokenizer,
    ) -> None:
        """Batches of `rows` texts, the first `context` tokens of each.

        Args:
            train: the examples of the training split.
            validation: those that are held out.
            context: tokens of a text that are read.
            rows: texts in a batch.
            seed: of their order.
            labels: what the model chooses among.
            tokenizer: that made the tokens.

        Raises:
            InputError: an example has none of these labels.
        """
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._labels, self._are_decoded = labels, train.labels is None
        self._numbers = _numbers((train, validation), labels, tokenizer)
        lengths = train.lengths() - train.index["learned"] + 1
        self.tokens = int(np.minimum(lengths, context).sum())
        self.shortened = int((lengths > context).sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The texts in a folder, cut to the context of a run, with the labels of its model."""
        train, validation = (open_examples(folder, split) for split in SPLITS)
        return cls(
            train,
            validation,
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
            labels=config.model.labels,
            tokenizer=Tokenizer.load(folder / FILE_NAME),
        )

    def _check(self, examples: StoredExamples) -> None:
        """Labels are not read, so none is too long."""

    def epoch_size(self, parameters: int) -> tuple[float, str]:  # noqa: ARG002
        """How much there is to learn from."""
        return self.tokens, "tokens of text in each"

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[Advice]:  # noqa: ARG002
        """Whether texts are longer than the context, or labels as many as examples."""
        found: list[Advice] = []
        if self.shortened:
            too_long = f"{self.shortened:,} of {self.samples:,} texts are longer than the context"
            found.append(Advice(f"{too_long}: their ends are left out", settings=["context_length"]))
        if self._are_decoded:
            decoded = "an earlier version prepared the examples, so labels are what the tokenizer decodes"
            found.append(Advice(f"{decoded}: prepare the examples again"))
        if 2 * len(self._labels) > self.samples:
            many = f"{len(self._labels):,} labels for {self.samples:,} texts"
            few = "a classifier chooses among few; completions are for a model that writes them"
            found.append(Advice(f"{many}: {few}"))
        return found

    def _of(self, examples: StoredExamples, numbers: Sequence[int]) -> Batch:
        rows, learned = zip(*map(examples.read, numbers), strict=True)
        texts = [
            beginning(np.concatenate([ids[:-count], ids[-1:]]), context=self._context)
            for ids, count in zip(rows, learned, strict=True)
        ]
        return Batch.of_texts(texts, self._numbers[examples is self._validation][list(numbers)].tolist())


def labels_of(folder: Path) -> tuple[str, ...]:
    """The labels of all examples in a folder, those held out included, in alphabetical order.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: all have the same label, so there is nothing to learn, or they are too many.
    """
    if read_manifest(folder).labels == 0:
        raise UsageError(
            "the examples have too many different completions to be labels: a classifier chooses among few"
        )
    splits = [open_examples(folder, split) for split in SPLITS]
    tokenizer = Tokenizer.load(folder / FILE_NAME)
    found = sorted({label for examples in splits for label in _stored_or_decoded(examples, tokenizer)})
    if len(found) < 2:
        raise UsageError(f"all examples have the same label, {found[0]!r}: a classifier needs two or more")
    return tuple(found)


def label_completions(folder: Path) -> tuple[str, ...]:
    """The completions of the examples in a folder in alphabetical order, if they are labels; else none.

    They are labels if they are few, short and seen often, as this module says, and differ in their tokens, whatever the
    form of the examples. Folders of earlier versions may lack the text of completions: then there are none.

    Raises:
        InputError: the folder holds no prepared examples.
    """
    if not 2 <= (read_manifest(folder).labels or 0) <= _MOST_LABELS:
        return ()
    examples, found = 0, set[str]()
    for split in (open_examples(folder, name) for name in SPLITS):
        assert split.labels is not None
        labels, sizes = split.labels.tolist(), split.index["bytes"].tolist()
        found |= {
            label if size == len(label.encode()) else LABEL_DELIMITER + label
            for label, size in set(zip(labels, sizes, strict=True))
        }
        examples += len(split)
    completions = tuple(sorted(found, key=parse_label))
    is_seen_often = examples >= _FEWEST_EXAMPLES * len(completions)
    if not is_seen_often or max(len(parse_label(each).encode()) for each in completions) > _LONGEST_LABEL:
        return ()
    encoded = Tokenizer.load(folder / FILE_NAME).encode_batch(list(completions))
    are_distinct = len({ids.tobytes() for ids in encoded}) == len({*map(parse_label, completions)}) == len(completions)
    return completions if are_distinct else ()


def completions_of(name: str) -> tuple[str, ...]:
    """The different completions of a file of examples, in alphabetical order of the labels that they are.

    Raises:
        InputError: there is no such file, or it has no examples.
    """
    found = {
        example.completion
        for file in find_text_files([name], DataConfig(supervised=True))
        for example in file.examples()
    }
    return tuple(sorted(found, key=parse_label))


@dataclass(frozen=True)
class LabelCounts:
    """How many examples have each label, the most frequent first.

    Attributes:
        train: of the training split; 0 for a label that is only held out.
        validation: of the examples that are held out.
    """

    train: Mapping[str, int]
    validation: Mapping[str, int]

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent label, and the fraction of the training split that has it."""
        label, count = next(iter(self.train.items()))
        return label, count / max(1, sum(self.train.values()))


def label_counts(folder: Path) -> LabelCounts:
    """Count the labels of the examples in a folder; InputError if it holds none."""
    tokenizer = Tokenizer.load(folder / FILE_NAME)
    train, validation = (Counter(_stored_or_decoded(open_examples(folder, split), tokenizer)) for split in SPLITS)
    labels = sorted({*train, *validation}, key=lambda label: (-train[label], label))
    return LabelCounts(*({label: counts[label] for label in labels} for counts in (train, validation)))


def _numbers(splits: Sequence[StoredExamples], labels: Sequence[str], tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
    """(examples,) which of the labels each example of each split has.

    A run of an earlier version has labels that were decoded from tokens, even if their text is stored now.

    Raises:
        InputError: an example has none of these labels.
    """
    places = {label: number for number, label in enumerate(labels)}
    for read in (_stored_or_decoded, _decoded):
        with contextlib.suppress(KeyError):
            return [np.array([places[label] for label in read(each, tokenizer)], dtype=np.int64) for each in splits]
    raise InputError("the examples have labels that the model has not learned; name the corpus of the run")


def _stored_or_decoded(examples: StoredExamples, tokenizer: Tokenizer) -> Iterable[str]:
    """The label of each example, as it was written or, in folders without their text, as its tokens are decoded."""
    return _decoded(examples, tokenizer) if examples.labels is None else examples.labels.tolist()


def _decoded(examples: StoredExamples, tokenizer: Tokenizer) -> Iterator[str]:
    """The label of each example, of which the last learned tokens are the label and the end; each is decoded once."""
    decoded = dict[bytes, str]()
    for ids, learned in map(examples.read, range(len(examples))):
        completion = ids[-learned:-1]
        key = completion.tobytes()
        if key not in decoded:
            decoded[key] = parse_label(tokenizer.decode(completion))
        yield decoded[key]
