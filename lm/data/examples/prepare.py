"""From examples to tokens on disk: which are held out, and what their tokens are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.data.corpus import FEWEST_DOCUMENTS, Corpus, scattered
from lm.data.encoding import grouped
from lm.data.examples.store import ExampleWriter
from lm.data.shards import SPLITS, SplitName, SplitRecord
from lm.errors import InputError
from lm.text.examples import Example
from lm.text.files import TextFile
from lm.tokenizer.framing import example_frame
from lm.tokenizer.tokenizer import Ids, Tokenizer

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Routed:
    """An example, the split it goes to, and its file with the file's number."""

    split: SplitName
    file: int
    source: TextFile
    example: Example


def write_examples(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, *, dtype: str, progress: Progress | None
) -> dict[str, SplitRecord]:
    """Write the examples of a corpus as `example_store` describes; returns what each split holds.

    Prompt and completion are tokenized apart, so that a model sees the boundary that it will see when it generates.

    Args:
        corpus: of examples.
        tokenizer: what makes the tokens.
        folder: that exists.
        dtype: of the shards.
        progress: called with the bytes of text that are done, and all there are.

    Raises:
        InputError: the tokenizer has no token for a character.
        UsageError: the tokenizer has no token that ends a text.
    """
    frame = example_frame(tokenizer)
    with contextlib.ExitStack() as opened:
        writers = {split: ExampleWriter(folder, split, dtype=dtype, frame=frame) for split in SPLITS}
        for writer in writers.values():
            opened.callback(writer.discard)
        done = 0
        for batch in grouped(_routed(corpus), lambda item: len(item.example.prompt) + len(item.example.completion)):
            for item, prompt, completion in zip(batch, *_encoded(batch, tokenizer), strict=True):
                writers[item.split].add(item.example, prompt, completion, file=item.file)
                done += len(item.example.prompt.encode()) + len(item.example.completion.encode())
            if progress:
                progress(done, corpus.bytes)
        return {split: writer.close() for split, writer in writers.items()}


def _routed(corpus: Corpus) -> Iterator[_Routed]:
    """All examples with the splits they go to.

    With a fraction, an example is held out if a hash of it falls below a bound, and equal ones stay together. The bound
    is the fraction itself or, where there are few examples, what holds out that share of them, but at least one.
    """
    bound = _bound(corpus)
    for file, found in enumerate(corpus.sources):
        for example in found.file.examples():
            split: SplitName = "validation" if _hash(example) < bound else "train"
            yield _Routed(split, file, found.file, example)
    for file, found in enumerate(corpus.validation_sources, len(corpus.sources)):
        for example in found.file.examples():
            yield _Routed("validation", file, found.file, example)


def _bound(corpus: Corpus) -> float:
    """Examples whose hash is below this are held out."""
    if not corpus.fraction or sum(found.documents for found in corpus.sources) >= FEWEST_DOCUMENTS:
        return float(corpus.fraction * 2**64)
    sources = (found.file for found in corpus.sources)
    hashes = sorted(_hash(example) for source in sources for example in source.examples())
    return hashes[max(1, int(len(hashes) * corpus.fraction))] if len(hashes) > 1 else 0


def _hash(example: Example) -> int:
    return scattered(f"{example.prompt}\0{example.completion}")


def _encoded(batch: Sequence[_Routed], tokenizer: Tokenizer) -> tuple[list[Ids], list[Ids]]:
    """The tokens of the prompts, and of the completions."""
    try:
        prompts = tokenizer.encode_batch([item.example.prompt for item in batch])
        return prompts, tokenizer.encode_batch([item.example.completion for item in batch])
    except InputError:
        for item in batch:  # which line it was
            _encode_one(item, tokenizer)
        raise


def _encode_one(item: _Routed, tokenizer: Tokenizer) -> None:
    try:
        tokenizer.encode_batch([item.example.prompt, item.example.completion])
    except InputError as error:
        raise InputError(f"{item.source.name}: line {item.example.line}: {error}") from None
