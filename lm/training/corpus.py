"""What a run learns from: prepared data, and the tokenizers that made them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lm.data.labels import labels_of
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus that is ready to be trained on.

    Attributes:
        folder: the prepared data.
        tokenizer: what made the tokens; those of the targets, where sources have a tokenizer of their own.
        source_tokenizer: what made the tokens of the sources, if that is another one.
        spare_tokens: ids that the model has beyond the tokenizer's, as many published ones that a run can start from.
    """

    folder: Path
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None
    spare_tokens: int = 0

    @property
    def vocab_size(self) -> int:
        """How many tokens a model knows that learns from this, spare ones included."""
        return self.tokenizer.vocab_size + self.spare_tokens

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its examples; errors as of `labels_of`."""
        return labels_of(self.folder)

    @property
    def has_merges(self) -> bool:
        """Whether BPE dropout has merges to leave out on both sides."""
        tokenizers = (self.tokenizer, self.source_tokenizer or self.tokenizer)
        return all(tokenizer.merge_rules is not None for tokenizer in tokenizers)

    def check_merges(self) -> None:
        """UsageError unless BPE dropout has merges to leave out on both sides."""
        if not self.has_merges:
            side = "tokenizer" if self.source_tokenizer is None else "tokenizer of one side"
            raise UsageError(f"BPE dropout leaves out merges, and the {side} has none: leave it out (--bpe-dropout)")
