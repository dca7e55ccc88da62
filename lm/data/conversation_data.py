"""Conversations as batches: the model reads all messages, and predicts the tokens of the assistant.

The end of a conversation longer than the context is left out, so that it begins with its system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from lm.config.run_config import RunConfig
from lm.corpus.tokenized_conversations import StoredConversations, open_conversations
from lm.data.batch import Batch, batch_rows
from lm.data.example_data import RowData
from lm.data.training_data import LabelledPrompt
from lm.errors import Advice, InputError


class ConversationData(RowData[StoredConversations]):
    """Training data of conversations; what is beyond the context is left out."""

    holds_conversations: ClassVar[bool] = True

    def __init__(
        self, train: StoredConversations, validation: StoredConversations, *, context: int, rows: int, seed: int
    ) -> None:
        """Create batches of `rows` conversations; InputError if none has a reply within the context."""
        usable = train.with_replies_within(context), validation.with_replies_within(context)
        if not len(usable[0]):
            problem = f"no conversation has a reply within the context of {context} tokens"
            raise InputError(f"{problem}: use a longer context", settings=["context_length"])
        super().__init__(*usable, context=context, rows=rows, seed=seed)
        self.tokens = int(train.count_within(context)[:, 0].sum())
        self.validation_bytes = int(validation.count_within(context)[:, 1].sum())
        self.n_left_out = len(train) + len(validation) - sum(map(len, usable))

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        return cls(
            open_conversations(folder, "train"),
            open_conversations(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
        )

    def describe_batch_size(self) -> str:
        return f"{self._rows} conversations"

    def warnings(self) -> list[Advice]:
        """Warn about conversations longer than the context."""
        problems = []
        if self.n_left_out:
            total = len(self._train) + len(self._validation) + self.n_left_out
            left_out = f"{self.n_left_out:,} of {total:,} conversations have no reply within the context"
            problems.append(f"{left_out}: they are left out")
        if self.n_truncated:
            longer = f"{self.n_truncated:,} of {self.samples:,} conversations are longer than the context"
            problems.append(f"{longer}: their last turns are left out")
        return [Advice(problem, settings=["context_length"]) for problem in problems]

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:  # noqa: ARG002
        return []

    def _make_batch(self, split: StoredConversations, numbers: Sequence[int]) -> Batch:
        size = self._context + 1
        rows = [(ids[:size], is_reply[:size]) for ids, is_reply in map(split.read, numbers)]
        return Batch.from_masked_rows([ids for ids, _ in rows], [is_reply for _, is_reply in rows])
