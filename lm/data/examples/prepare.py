"""From examples to token shards: which examples are held out, and what their tokens are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lm.data.array_writer import token_dtype
from lm.data.corpus import Corpus
from lm.data.examples.store import ExampleWriter
from lm.data.held_out import hash_bound, text_hash
from lm.data.manifest import SPLITS, SplitName
from lm.data.prepare import WrittenTokens
from lm.data.tokenizing import encoded
from lm.text.documents import Survey
from lm.text.examples import Example
from lm.text.files import Progress
from lm.tokenizer.framing import example_frame
from lm.tokenizer.tokenizer import Ids, Tokenizer


@dataclass(frozen=True, slots=True)
class SplitExample:
    """An example, the split it belongs to, and its file with the file's number."""

    split: SplitName
    file: int
    file_name: str
    example: Example

    @property
    def texts(self) -> tuple[str, str]:
        """Prompt and completion."""
        return self.example.prompt, self.example.completion

    @property
    def place(self) -> str:
        """The file and the line."""
        return f"{self.file_name}: line {self.example.line}"


def split_examples(corpus: Corpus) -> Iterator[SplitExample]:
    """All examples with the splits they belong to.

    With a fraction, an example is held out if a hash of it falls below a bound, and equal ones stay together. The bound
    is the fraction itself or, where there are few examples, what holds out that share of them, but at least one.
    """
    numbered = _numbered(corpus.files)
    few = None
    if corpus.has_few_documents:
        numbered = iter(examples := list(numbered))
        few = [_hash(example) for _, _, example in examples]
    bound = hash_bound(corpus.fraction, few)
    for file, name, example in numbered:
        yield SplitExample("validation" if _hash(example) < bound else "train", file, name, example)
    for file, name, example in _numbered(corpus.validation_files, first=len(corpus.files)):
        yield SplitExample("validation", file, name, example)


def _numbered(surveys: Sequence[Survey], *, first: int = 0) -> Iterator[tuple[int, str, Example]]:
    """The examples of files, each with the number of its file and the file's name."""
    for number, found in enumerate(surveys, first):
        for example in found.file.examples():
            yield number, found.file.name, example


def _hash(example: Example) -> int:
    return text_hash(f"{example.prompt}\0{example.completion}")


def write_examples(corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None, folder: Path) -> WrittenTokens:
    """Write the examples of both splits as `lm.data.examples.store` describes, into an empty folder.

    Prompt and completion are tokenized apart, so that a model sees the boundary that it will see when it generates.
    The arguments and errors are those of `lm.data.kinds.prepare_corpus`.
    """
    frame, dtype = example_frame(tokenizer), token_dtype(tokenizer.vocab_size)
    with contextlib.ExitStack() as opened:
        writers = {split: ExampleWriter(folder, split, dtype=dtype, frame=frame) for split in SPLITS}
        for writer in writers.values():
            opened.callback(writer.discard)
        for group, tokens in encoded(corpus, split_examples(corpus), partial(_encode, tokenizer), progress=progress):
            for item, prompt, completion in zip(group, *tokens, strict=True):
                writers[item.split].add(item.example, prompt, completion, file=item.file)
        return WrittenTokens({split: writer.close() for split, writer in writers.items()})


def _encode(tokenizer: Tokenizer, group: Sequence[SplitExample]) -> tuple[list[Ids], list[Ids]]:
    """The tokens of the prompts, and of the completions."""
    prompts = tokenizer.encode_batch([item.example.prompt for item in group])
    return prompts, tokenizer.encode_batch([item.example.completion for item in group])
