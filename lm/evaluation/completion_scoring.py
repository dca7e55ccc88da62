"""Surprisal of completions after their prompts, and of replies in conversations: what fine-tuning minimises."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.checkpoint import LoadedModel
from lm.config.data import DataKind
from lm.corpus.encode import encode
from lm.data.batch import Batch
from lm.data.bucketing import batched, length_batches
from lm.data.rows import completion_length_error, truncate_prompt
from lm.errors import InputError, UsageError
from lm.evaluation.batch_scoring import Nats, score_batches
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.perplexity import FileScore, PerplexityResult
from lm.model.transformer import DecoderOnly
from lm.processes import ParallelMap
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer

_EXAMPLES_AT_ONCE = 4096
"""Examples sorted by length together: enough that batches have hardly any padding."""


def find_scored_kind(loaded: LoadedModel, files: Sequence[TextFile]) -> DataKind:
    """Return whether to score the text of files, the completions of examples, or the replies of conversations.

    Raises:
        UsageError: the files are of different kinds, or there is no chat template for conversations.
    """
    kinds = {file.kind: file.name for file in files}
    if len(kinds) > 1:
        named = " and ".join(f"{name} holds {kind}" for kind, name in kinds.items())
        raise UsageError(f"{named}; measure them separately")
    if "conversations" in kinds and loaded.tokenizer.chat_template is None:
        raise UsageError(f"{loaded.folder}: has no chat template, so it cannot score conversations; train it on some")
    return next(iter(kinds), "text")


@dataclass
class RowScores:
    """Scores of files of examples or conversations, filled file by file.

    Attributes:
        files: the totals of each.
        shortened: how many rows were truncated to fit the context.
        warnings: which files were training text of the run.
    """

    files: list[FileScore] = field(default_factory=list)
    shortened: int = 0
    warnings: list[str] = field(default_factory=list)


def score_rows(
    loaded: LoadedModel,
    files: Sequence[TextFile],
    scored: RowScores,
    *,
    context: int,
    batch_size: int,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
) -> None:
    """Score files of examples or conversations; other arguments and errors as of `score_completions`.

    Args:
        scored: receives the results; after an error, those of the files before.
        on_rows: called with the rows of a file that are scored so far.
    """
    model, tokenizer, contamination = loaded.model, loaded.tokenizer, ContaminationCheck(loaded)
    assert isinstance(model, DecoderOnly), "masked models learn no completions"
    for number, file in enumerate(files):
        contamination.add_rows(number, file.records())
        for event in score_completions(
            model, tokenizer, file.records(), context=context, batch_size=batch_size, name=file.name,
            parallel_map=parallel_map,
        ):  # fmt: skip
            on_rows(event.result.documents)
        scored.files.append(FileScore(file.name, event.result))
        scored.shortened += event.shortened
    scored.warnings += contamination.warnings([file.name for file in files])


@dataclass(frozen=True)
class CompletionScores:
    """Progress of scoring completions.

    Attributes:
        result: totals so far, end tokens included; `documents` counts examples or conversations.
        shortened: how many so far were truncated to fit the context.
    """

    result: PerplexityResult
    shortened: int


def score_completions(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    rows: Iterable[Record],
    *,
    context: int,
    batch_size: int,
    name: str,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> Iterator[CompletionScores]:
    """Score examples or conversations in bounded memory, as in training (see `lm.data.rows`).

    Conversations without a reply within the context are left out, and count as shortened.

    Args:
        rows: for conversations, the tokenizer needs a chat template.
        parallel_map: scores batches in other processes, with `score_batch`.

    Yields:
        The totals after every few thousand rows, at least once; the last are final.

    Raises:
        InputError: a text cannot be encoded, a completion exceeds the context, or the model outputs NaN.
        UsageError: the tokenizer has no start or end token.
    """
    result, count, offsets = PerplexityResult(), 0, TokenOffsets(tokenizer)
    for chunk in batched(rows, _EXAMPLES_AT_ONCE):
        framed = [_encode(row, tokenizer, offsets, context, name) for row in chunk]
        count += sum(example.is_shortened for example in framed)
        scored = [example for example in framed if example.is_scored.any()]
        numbers = length_batches([len(example.ids) for example in scored], rows=batch_size)
        parts = [[scored[number] for number in batch] for batch in numbers]
        batches = (
            Batch.from_masked_rows(
                [completion.ids for completion in part], [completion.is_scored for completion in part]
            )
            for part in parts
        )
        for part, of_batch in zip(parts, score_batches(model, batches, parallel_map), strict=True):
            for completion, nats in zip(part, of_batch, strict=True):
                result.add_document(nats, completion.texts, completion.round_trip_losses, where=completion.where)
        yield CompletionScores(result, count)
    yield CompletionScores(result, count)


@dataclass(frozen=True)
class _EncodedExample:
    """An encoded example or conversation.

    Attributes:
        ids: (tokens,) all tokens.
        is_scored: (tokens,) which of them are scored.
        is_shortened: whether some were left out, to fit the context.
        round_trip_losses: what encoding loses of the texts.
    """

    texts: Sequence[str]
    where: str
    ids: NDArray[Any]
    is_scored: NDArray[np.bool_]
    is_shortened: bool
    round_trip_losses: Sequence[RoundTripLoss]


def _encode(row: Record, tokenizer: Tokenizer, offsets: TokenOffsets, context: int, name: str) -> _EncodedExample:
    where = f"{name}: line {row.line}"
    try:
        (encoded,) = encode([row], (tokenizer, None))
        if encoded.replies is None:
            if problem := completion_length_error(encoded.learned, context=context):
                raise InputError(f"{problem}; leave it out")
            ids, texts = truncate_prompt(encoded.tokens, context=context), [row.parts[-1].text]
            is_scored = np.arange(len(ids)) >= len(ids) - encoded.learned
        else:
            ids, is_scored = encoded.tokens[: context + 1], encoded.replies[: context + 1] >= 0
            runs = itertools.groupby(zip(is_scored, encoded.spelled, strict=False), key=itemgetter(0))
            texts = ["".join(text for _, text in run) for is_reply, run in runs if is_reply]
        spelled = zip(texts, tokenizer.encode_batch(texts), strict=True)
        losses = [offsets.round_trip_loss(Record.of_text(text), own) for text, own in spelled]
    except InputError as error:
        raise error.at(where) from None
    return _EncodedExample(texts, where, ids, is_scored, len(ids) < len(encoded.tokens), losses)
