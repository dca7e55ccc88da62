"""Labels for texts, by a masked model that was made a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from lm.corpus.ragged import Ragged
from lm.data.examples import beginning
from lm.errors import check_number
from lm.model.transformer import EncoderOnly
from lm.tokenizer.framing import example_frame
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Classified:
    """A text with its label.

    Attributes:
        text: as it was given.
        probabilities: of each label, the likeliest first.
    """

    text: str
    probabilities: Mapping[str, float]

    @property
    def label(self) -> str:
        """The likeliest label."""
        return next(iter(self.probabilities))


@dataclass(frozen=True)
class Classifier:
    """Classifies texts with one model.

    Attributes:
        model: in eval mode, with labels.
        tokenizer: of the model.
        batch_size: texts that are read side by side; changes the speed, not the labels.
    """

    model: EncoderOnly
    tokenizer: Tokenizer
    batch_size: int = 16

    def classify(self, texts: Iterable[str]) -> Iterator[Classified]:
        """The label of each text, in order. Of a text that is longer than the context its beginning is read.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
        """
        lines = iter(texts)
        while batch := list(islice(lines, self.batch_size)):
            yield from self._classify(batch)

    @torch.inference_mode()
    def _classify(self, texts: Sequence[str]) -> Iterator[Classified]:
        frame, config = example_frame(self.tokenizer), self.model.config
        rows = Ragged.of(
            [
                beginning(frame.around(ids), context=config.context_length)
                for ids in self.tokenizer.encode_batch(list(texts))
            ]
        )
        device = next(self.model.parameters()).device
        tokens, lengths = (torch.from_numpy(ids).to(device) for ids in (rows.padded(0), rows.lengths()))
        shares = self.model(tokens, lengths=lengths)[:, 0].float().softmax(-1).tolist()
        for text, of_text in zip(texts, shares, strict=True):
            check_number(of_text[0])
            ranked = sorted(zip(config.labels, of_text, strict=True), key=lambda pair: -pair[1])
            yield Classified(text, dict(ranked))
