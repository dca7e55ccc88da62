"""Sums over scored tokens: perplexity, the difference of two models, and surprisal by token, word and character.

What is scored is files, or the held-out split of a run, with a warning if it was training text of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from lm.checkpoint import LoadedModel
from lm.config.run_config import DataKind, FilesConfig, RunConfig
from lm.corpus import Manifest, Split, open_split, read_held_out, verify_checksums
from lm.corpus.survey import Hashes, hash_records
from lm.data.windows import find_examples
from lm.errors import InputError, UsageError
from lm.evaluation.scoring import Nats, Scored, ScoredTexts
from lm.run_folder import find_checkpoint, load_config
from lm.text import Record, parse_messages
from lm.text.parallel_text import Source, find_sources
from lm.tokenizer.offsets import ByteOffsets, assign_word_indices

Blocks = NDArray[np.float64]
"""(blocks, 4) segments, bytes, bits of the first and of the second model of blocks of text; see `PairedDifference`."""

BLOCK_BYTES = 256
_JOINERS = "\u200c\u200d"


@dataclass
class PerplexityResult:
    """Totals over scored text, and the metrics computed from them.

    The metrics of several files are those of their summed totals (micro-average): each token has the same weight.

    Attributes:
        unscored: first tokens of documents, if there is no start token to predict them from.
        documents: documents, examples, conversations or sentence pairs.
        words: whitespace-separated words of their text.
        bytes: UTF-8 bytes of the scored tokens.
        nats: surprisal of the scored tokens.
        unknown_tokens: tokens for text that the vocabulary cannot represent.
        lost_bytes: bytes that encoding and decoding loses. They have no surprisal, so results per word and per byte are
            not comparable with those of another tokenizer.
        shortened: examples and conversations that were truncated to fit the context.
        blank: rows without anything to score, which are left out: pairs with a blank side, conversations without a
            reply in the context, examples whose completion is longer than the context.
    """

    tokens: int = 0
    unscored: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0
    nats: float = 0.0
    unknown_tokens: int = 0
    lost_bytes: int = 0
    shortened: int = 0
    blank: int = 0

    @classmethod
    def total(cls, parts: Iterable[PerplexityResult]) -> PerplexityResult:
        """Add up several results, such as those of files."""
        return cls(*map(sum, zip(astuple(cls()), *map(astuple, parts), strict=True)))

    def add(self, scored: Scored) -> None:
        """Count scored text."""
        nats, text_bytes = scored.nats[scored.unscored :], len(scored.text.encode())
        self.tokens += len(nats)
        self.unscored += scored.unscored
        self.documents += scored.starts
        self.words += scored.words
        self.bytes += text_bytes - (int(scored.ends[0]) if scored.unscored else 0)
        self.nats += float(nats.sum())
        self.unknown_tokens += scored.loss.unknown
        self.lost_bytes += scored.loss.bytes
        self.shortened += scored.is_shortened and (scored.starts or not scored.text)
        self.blank += not scored.text

    @property
    def loses_text(self) -> bool:
        """Return whether the tokenizer loses some of the text."""
        return bool(self.unknown_tokens or self.lost_bytes)

    @property
    def perplexity(self) -> float | None:
        """Return exp(nats / tokens); None without tokens."""
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Return exp(nats / words), comparable across tokenizers; None without words, or on overflow."""
        return _exp_ratio(self.nats, self.words)

    @property
    def nats_per_token(self) -> float | None:
        return self.nats / self.tokens if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Return bits of surprisal per UTF-8 byte, comparable across tokenizers; None without bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None


def _exp_ratio(nats: float, count: int) -> float | None:
    try:
        return math.exp(nats / count) if count else None
    except OverflowError:
        return None


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two models in bits per byte, first minus second: negative if the first is better.

    Tokenizers may differ: the text is cut at bytes where tokens end in both tokenizations. The segments between cuts
    are the same text for both models (with one tokenizer, its tokens), so surprisals can be subtracted. Segments with
    an unscored token are ignored. A block is consecutive segments of at least 256 bytes (a file's last may be shorter).

    Attributes:
        difference: r = D / N, where d is the difference in bits of a block and n its bytes, D = Σd and N = Σn.
        standard_error: by the delta method √(m / (m - 1) · Σ(d - r·n)²) / N for m blocks; None below two. Blocks, not
            tokens, are independent, because differences of models are correlated over neighbouring tokens.
        z: the difference in standard errors.
    """

    bytes: int
    segments: int
    blocks: int
    first_bits_per_byte: float | None = None
    second_bits_per_byte: float | None = None
    difference: float | None = None
    standard_error: float | None = None
    z: float | None = None

    @classmethod
    def of_blocks(cls, blocks: Blocks) -> PairedDifference:
        segments, size, first, second = blocks.sum(axis=0).tolist()
        counts, number = (int(size), int(segments), len(blocks)), len(blocks)
        if not number:
            return cls(*counts)
        ratio, error = (first - second) / size, None
        if number > 1:
            residuals = blocks[:, 2] - blocks[:, 3] - ratio * blocks[:, 1]
            error = math.sqrt(number / (number - 1) * float(np.square(residuals).sum())) / size
        return cls(*counts, first / size, second / size, ratio, error, ratio / error if error else None)


def compare_models(
    first: Iterable[Scored], second: Iterable[Scored], *, files: int, block_bytes: int = BLOCK_BYTES
) -> list[Blocks]:
    """Return the blocks of each of several files, scored by two models."""
    by_file = []
    for sides in zip(_by_file(first, files), _by_file(second, files), strict=True):
        if len({ends[-1:].tobytes() for ends, _ in sides}) > 1:
            raise UsageError("the models read different parts of the texts: give one --context")
        cuts, blocks, block = np.intersect1d(sides[0][0], sides[1][0]), [], np.zeros(4)
        one, two = (
            np.bincount(np.searchsorted(cuts, ends), weights=nats, minlength=len(cuts)) / math.log(2)
            for ends, nats in sides
        )
        for length, *bits in zip(np.diff(cuts, prepend=0), one, two, strict=True):
            if not np.isnan(bits).any():
                block += (1, length, *bits)
            if block[1] >= block_bytes:
                blocks.append(block)
                block = np.zeros(4)
        by_file.append(np.array([*blocks, *([block] if block[0] else [])]).reshape(-1, 4))
    return by_file


def _by_file(scored: Iterable[Scored], files: int) -> list[tuple[ByteOffsets, Nats]]:
    """Return the ends of all tokens of each file, in bytes of its text, and their nats."""
    ends: list[list[ByteOffsets]] = [[np.zeros(0, dtype=np.int64)] for _ in range(files)]
    nats: list[list[Nats]] = [[np.zeros(0)] for _ in range(files)]
    size = [0] * files  # of the texts before
    for some in scored:
        ends[some.file].append(size[some.file] + some.ends)
        nats[some.file].append(some.nats)
        size[some.file] += len(some.text.encode())
    return [(np.concatenate(places), np.concatenate(values)) for places, values in zip(ends, nats, strict=True)]


def iterate_tokens(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each token in reading order: its place and surprisal.

    `offset` and `bytes` are its text's in the document; `bytes` is 0 if an earlier token has all of their character,
    and `text` has replacement characters for parts of one. `nats` is None for an unscored token.
    """
    offset = index = 0
    for some in scored:
        if some.starts:
            offset = index = 0
        data, start = some.text.encode(), 0
        for token, end, nats in zip(some.tokens.tolist(), some.ends.tolist(), some.nats.tolist(), strict=True):
            yield {
                "file": names[some.file],
                "document": some.document,
                "index": index,
                "offset": offset + start,
                "bytes": end - start,
                "token": token,
                "text": data[start:end].decode(errors="replace"),
                "nats": None if math.isnan(nats) else nats,
            }
            start, index = end, index + 1
        offset += len(data)


def iterate_words(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each whitespace-separated word in reading order: its place and surprisal.

    The surprisal of a word is that of its tokens; see `assign_word_indices`. A word without a token of its own is part
    of the one before. `bits` is None if one of the tokens is unscored.
    """
    offset = index = 0
    for some in scored:
        if some.starts:
            offset = index = 0
        words = [match.span() for match in re.finditer(r"\S+", some.text)] or [(0, 0)]
        numbers = np.array(assign_word_indices(some.text, some.ends.tolist()), dtype=np.int64)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()  # tokens
        for first, stop in itertools.pairwise([*firsts, len(numbers)]):
            following = numbers[stop] if stop < len(numbers) else len(words)
            begin, end = words[numbers[first]][0], words[following - 1][1]
            bits = float(some.nats[first:stop].sum()) / math.log(2)
            yield {
                "file": names[some.file],
                "document": some.document,
                "index": index,
                "offset": offset + len(some.text[:begin].encode()),
                "bytes": len(some.text[begin:end].encode()),
                "tokens": stop - first,
                "text": some.text[begin:end],
                "bits": None if math.isnan(bits) else bits,
            }
            index += 1
        offset += len(some.text.encode())


@dataclass(frozen=True)
class TextSpan:
    """Text of one or more tokens, with the sum of their surprisals in bits; NaN if one is not scored."""

    file: int
    document: int
    text: str
    tokens: int
    bits: float


def merge_into_spans(scored: Iterable[Scored]) -> Iterator[TextSpan]:
    """Merge tokens, adding their surprisals, until no character is split, nor what is drawn as one."""
    for some in scored:
        data, ends, begin, first = some.text.encode(), some.ends.tolist(), 0, 0
        for number, (end, following) in enumerate(zip(ends, [*ends[1:], None], strict=True), 1):
            if following is not None and (end in (begin, following) or not _is_boundary(data, end)):
                continue
            bits = float(some.nats[first:number].sum()) / math.log(2)
            yield TextSpan(some.file, some.document, data[begin:end].decode(), number - first, bits)
            begin, first = end, number


def _is_boundary(data: bytes, place: int) -> bool:
    """Return whether a text is cut between graphemes, such as emoji, flags, Hangul syllables, and CRLF.

    Source: Unicode Standard Annex 29, extended grapheme clusters, simplified.
    """
    if data[place] & 0xC0 == 0x80:  # a continuation byte
        return False
    last = data[max(0, place - 4) : place].decode(errors="ignore")[-1]
    first = data[place : place + 4].decode(errors="ignore")[0]
    is_flag = min(last, first) >= "\U0001f1e6" and max(last, first) <= "\U0001f1ff"
    is_modifier = "\U0001f3fb" <= first <= "\U0001f3ff" or "\U000e0020" <= first <= "\U000e007f"  # skin tones, tags
    is_part = is_flag or is_modifier or "\u1160" <= first <= "\u11ff" or unicodedata.category(first)[0] == "M"
    return not (is_part or first in _JOINERS or last == _JOINERS[1] or last + first == "\r\n")


_ADVICE = "name text to measure it on, or prepare its corpus again"
_MAX_NAMES = 200  # characters


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
    kind: DataKind
    languages: tuple[str | None, str | None]
    heads: Literal[True] | None

    name: ClassVar[str] = "held-out"
    notes: ClassVar[Sequence[str]] = ()

    def records(self) -> Iterator[Record]:
        """Yield its documents, in pieces, or its rows."""
        for line, row in enumerate(read_held_out(self.folder), 1):
            if "source" in row:
                heads = tuple(row["heads"]) if self.heads else None
                yield Record.of_pair(row["source"], row["target"], line=line)._replace(dependency_heads=heads)
            elif "messages" in row:
                yield Record(parse_messages(row["messages"]), line=line)
            elif "text" in row:
                yield Record.of_text(row["text"], starts=row.get("starts", True))
            else:
                yield Record.of_example(row["prompt"], row["completion"], line=line)


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
    return ScoredTexts([HeldOut(folder, manifest.kind, manifest.languages, heads)])


def open_texts(
    loaded: LoadedModel,
    names: Sequence[str],
    reading: FilesConfig,
    data: Mapping[str, Any],
    *,
    kind: Literal["examples"] | None = None,
    language: str | None = None,
    **sides: Sequence[str],
) -> ScoredTexts:
    """Return files to score by a run, or without any what it held out.

    Args:
        names: files, folders and globs.
        data: settings of `DataConfig` that differ from those of the run.
        kind: what files hold [default: what their columns tell].
        language: target language of pairs.
        sides: source, target and heads, as for `find_sources`.

    Raises:
        InputError: a file is missing, or not of the kind; or as of `open_held_out`.
        UsageError: the model scores no such texts, or the files are of different kinds.
    """
    config = loaded.config.data.for_other_files(**data)
    files: Sequence[Any]
    if not (names or any(sides.values())):
        files = open_held_out(loaded).files
    elif kind == "examples":
        files = find_examples(names, config, reading)
    else:
        files = find_sources(names, config, reading, **sides)
    if kind is None:
        check_kinds(loaded, files)
    elif files[0].kind != kind:
        raise UsageError(f"{loaded.folder}: holds out {files[0].kind}, not {kind}; name {kind}")
    return ScoredTexts(files, language)


def check_kinds(loaded: LoadedModel, files: Sequence[Source]) -> None:
    """Raise UsageError unless a run scores what files hold, and that is of one kind."""
    config, kinds = loaded.config, sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise UsageError(f"the files hold {' and '.join(kinds)}; measure them separately")
    translates = config.model.translates != (kinds == ["pairs"])
    if translates or config.model.labels or (config.model.is_masked and kinds != ["text"]):
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
        named = ", ".join(f"{name} ({fraction:.0%})" for name, fraction in seen.items() if fraction)
        shown = shorten(named, _MAX_NAMES, placeholder=" …")
        return [f"{shown}: training text of {self._folder}; measure other text"] if shown else []


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
