"""From examples to token shards: which examples are held out, and what their tokens are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lm.data.array_writer import token_dtype
from lm.data.corpus import Corpus
from lm.data.examples.store import ExampleWriter, JoinedExamples, JoinedLabels
from lm.data.held_out import hash_bound, text_hash
from lm.data.manifest import SPLITS, SplitName, WrittenTokens
from lm.data.part_store import Done, PartSplit, StoredPart
from lm.data.parts import HeldOut, Part, Stretch
from lm.data.tokenizing import encoded_ahead, text_bytes
from lm.text.examples import Example
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


def held_out_examples(corpus: Corpus) -> HeldOut:
    """Which examples of a corpus are held out.

    With a fraction, an example is held out if a hash of it falls below a bound, and equal ones stay together. The bound
    is the fraction itself or, where there are few examples, what holds out that share of them, but at least one.
    """
    few = corpus.fraction and corpus.has_few_documents
    return HeldOut(hash_bound(corpus.fraction), share=corpus.fraction if few else None)


def split_examples(part: Part) -> Iterator[SplitExample]:
    """All examples of a part of a corpus with the splits they belong to."""
    found: Iterable[tuple[Stretch, Example]]
    found = ((stretch, example) for stretch in part.stretches for example in stretch.file.examples())
    share, bound = part.stretches[0].held_out.share, 0
    if share is not None:
        found = few = list(found)
        bound = hash_bound(share, [_hash(example) for stretch, example in few if stretch.held_out.share is not None])
    for stretch, example in found:
        below = stretch.held_out.bound if stretch.held_out.share is None else bound
        split: SplitName = "validation" if _hash(example) < below else "train"
        yield SplitExample(split, stretch.number, stretch.file.name, example)


def _hash(example: Example) -> int:
    return text_hash(f"{example.prompt}\0{example.completion}")


def write_examples(part: Part, tokenizer: Tokenizer, folder: Path, done: Done | None) -> dict[SplitName, PartSplit]:
    """Write the examples of a part of a corpus into an empty folder.

    Prompt and completion are tokenized apart, so that a model sees the boundary that it will see when it generates.
    """
    frame, dtype = example_frame(tokenizer), token_dtype(tokenizer.vocab_size)
    with contextlib.ExitStack() as opened:
        writers = {split: ExampleWriter(folder, split, dtype=dtype, frame=frame) for split in SPLITS}
        for writer in writers.values():
            opened.callback(writer.discard)
        for group, tokens in encoded_ahead(split_examples(part), partial(_encode, tokenizer)):
            for item, prompt, completion in zip(group, *tokens, strict=True):
                writers[item.split].add(item.example, prompt, completion, file=item.file)
            if done:
                done(sum(map(text_bytes, group)))
        return {split: writer.close() for split, writer in writers.items()}


def _encode(tokenizer: Tokenizer, group: Sequence[SplitExample]) -> tuple[list[Ids], list[Ids]]:
    """The tokens of the prompts, and of the completions."""
    prompts = tokenizer.encode_batch([item.example.prompt for item in group])
    return prompts, tokenizer.encode_batch([item.example.completion for item in group])


def join_examples(parts: Iterable[StoredPart], tokenizer: Tokenizer, folder: Path) -> WrittenTokens:
    """Write the examples of both splits as `lm.data.examples.store` describes, given all parts in order."""
    with contextlib.ExitStack() as opened:
        dtype, labels = token_dtype(tokenizer.vocab_size), JoinedLabels()
        joined = {split: JoinedExamples(folder, split, dtype=dtype, labels=labels) for split in SPLITS}
        for split in joined.values():
            opened.callback(split.discard)
        for part in parts:
            for split in joined.values():
                split.add(part)
        labels.write(folder, SPLITS)
        return WrittenTokens({name: split.close() for name, split in joined.items()}, labels=labels.count)
