"""Labels of texts, by a masked model with a classification head or a decoder that ranks completions; mask filling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.data import batched, length_batches
from lm.data.windows import truncate_text
from lm.decoding import DecodeSession, check_not_nan, pad
from lm.engine import OutputSpec, plan_engines
from lm.errors import UsageError
from lm.model import DecoderOnly, EncoderOnly, Model, average_predictions
from lm.text import parse_label
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import build_example_frame, build_text_frame, require_mask_token

_SORT_WINDOW = 1024
"""Texts that are sorted by length together."""


@dataclass(frozen=True, slots=True)
class ClassifiedText:
    """A text with the probability of each label, the most probable first."""

    text: str
    probabilities: Mapping[str, float]

    @property
    def label(self) -> str:
        return next(iter(self.probabilities))


class Classifier:
    """Classifies texts: by the head of a masked model, or a decoder, whose label is the most probable completion.

    The log-probability of a completion is the sum over its tokens and the end-of-example token, so that a label can be
    a prefix of another. Probabilities are normalised over the labels.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        completions: Sequence[str] = (),
        batch_size: int = 16,
    ) -> None:
        """Encode the labels.

        Args:
            completions: of each label, with its delimiter; for a decoder.
            batch_size: texts per batch; affects only speed.

        Raises:
            UsageError: there are fewer than two, or they don't fit into the context, or have the same tokens.
        """
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.labels, self._frame = model.config.labels, build_example_frame(tokenizer)
        if not isinstance(model, DecoderOnly):
            return
        self.labels = tuple(map(parse_label, completions))
        ids = [(*each.tolist(), *self._frame.after) for each in tokenizer.encode_batch(list(completions))]
        if len({*self.labels}) < max(2, len(ids)) or len({*ids}) < len(ids):
            raise UsageError("a classifier needs two or more labels, each with tokens of its own")
        # The last token of a completion is only predicted.
        self._completions, self._room = ids, model.config.context_length + 1 - max(map(len, ids))
        if self._room < len(self._frame.before):
            raise UsageError(f"label {max(self.labels, key=len)!r} does not fit into the context")

    def classify(self, texts: Iterable[str]) -> Iterator[ClassifiedText]:
        """Classify texts, in order. One longer than the context is truncated: at its end, for a decoder at its start.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
        """
        for chunk in batched(texts, _SORT_WINDOW):
            rows = self.probabilities(self.tokenizer.encode_batch(chunk)).tolist()
            for text, probabilities in zip(chunk, rows, strict=True):
                check_not_nan(probabilities[0])
                ranked = sorted(zip(self.labels, probabilities, strict=True), key=lambda pair: -pair[1])
                yield ClassifiedText(text, dict(ranked))

    @torch.inference_mode()
    def probabilities(self, prompts: Sequence[Any]) -> Tensor:
        """Return (prompts, labels) probabilities, float64; prompts are IDs without start of text."""
        model, frame, scores = self.model, self._frame, torch.zeros(len(prompts), len(self.labels), dtype=torch.float64)
        if isinstance(model, EncoderOnly):
            device, context = next(model.parameters()).device, model.config.context_length
            for some, rows in zip(scores.split(self.batch_size), batched(prompts, self.batch_size), strict=True):
                padded = pad([truncate_text(frame.wrap(ids), context=context) for ids in rows])
                tokens, lengths = (each.to(device) for each in padded)
                of_members = [member(tokens, lengths=lengths)[:, 0] for member in model.members]
                some[:] = average_predictions(of_members).float().softmax(-1).cpu()
            return scores
        assert isinstance(model, DecoderOnly)
        most, plan = self._room - len(frame.before), plan_engines(model, tokens=max(map(len, self._completions)))
        read = [[*frame.before, *ids[max(0, len(ids) - most) :].tolist()] for ids in prompts]
        for numbers in length_batches(list(map(len, read)), rows=self.batch_size):
            session = DecodeSession(plan)
            following = session.add([read[number] for number in numbers]).last_logits.log_softmax(-1)
            n_read = list(map(len, session.tokens))
            for label, (first, *rest) in enumerate(self._completions):
                scores[numbers, label] = following[:, first].cpu().double()
                if rest:
                    fed = torch.tensor([[first, *rest[:-1]]]).expand(len(numbers), -1)
                    logits = session.extend(fed, OutputSpec(logits_to_keep=len(rest))).logits
                    assert logits is not None
                    logprobs = logits.log_softmax(-1)[:, range(len(rest)), rest]
                    scores[numbers, label] += logprobs.cpu().double().sum(-1)
                    session.truncate(n_read)
        return scores.softmax(-1)


def build_classifier(loaded: LoadedModel, completions: Sequence[str] = (), *, batch_size: int = 16) -> Classifier:
    """Build the classifier of a run: a masked model with labels, or a decoder with completions.

    Args:
        completions: labels of a decoder [default: those recorded in the run].

    Raises:
        UsageError: the run is not a classifier.
    """
    model, completions = loaded.model, completions or loaded.config.label_completions
    if not (model.config.labels or (completions and isinstance(model, DecoderOnly) and not model.config.translates)):
        raise UsageError(f"{loaded.folder}: this run {model.config.purpose}, and no labels are known")
    return Classifier(model, loaded.tokenizer, completions, batch_size)


@dataclass(frozen=True, slots=True)
class MaskCandidate:
    """A candidate token for a mask, its text with replacement characters for incomplete characters."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with candidates for its masks.

    Attributes:
        blanks: the most probable tokens of each mask, best first, predicted with the other masks in place.
        filled: the text with the best candidate for each mask.
    """

    text: str
    blanks: tuple[tuple[MaskCandidate, ...], ...]
    filled: str


@torch.inference_mode()
def fill_masks(
    model: EncoderOnly, tokenizer: Tokenizer, texts: Iterable[str], *, k: int = 5, batch_size: int = 16
) -> Iterator[FilledText]:
    """Predict the k most probable tokens for each mask of each text, in order.

    A mask is spelled as in the tokenizer, such as `[MASK]`, and stands for one token.

    Raises:
        InputError: the tokenizer has no token for a character, or the model's output is not a number.
        UsageError: a text is longer than the model's context, or the tokenizer has no mask token.
    """
    mask, frame = require_mask_token(tokenizer), build_text_frame(tokenizer)
    device, context = next(model.parameters()).device, model.config.context_length
    for batch in batched(texts, batch_size):
        rows = [frame.wrap(tokenizer.encode(text, parse_special=True)) for text in batch]
        if (longest := max(map(len, rows))) > context:
            raise UsageError(f"the text has {longest:,} tokens, more than the context {context:,}")
        tokens, lengths = (each.to(device) for each in pad(rows))
        places = pad([row == mask for row in rows])[0].bool().to(device)  # padding may have the ID of the mask
        logits = [member.logits(member.hidden(tokens, target_lengths=lengths)[places]) for member in model.members]
        probabilities = average_predictions(logits).float().softmax(-1)
        known = probabilities[:, : tokenizer.vocab_size]  # the others are vocabulary padding
        top = known.topk(min(k, known.shape[-1]))
        candidates = iter(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        for text, row in zip(batch, rows, strict=True):
            blanks, filled = [], row.copy()
            for place in (row == mask).nonzero()[0]:
                indices, values = next(candidates)
                check_not_nan(values[0])
                spelled = [tokenizer.token_bytes(index).decode(errors="replace") for index in indices]
                blanks.append(tuple(map(MaskCandidate, indices, spelled, values)))
                filled[place] = indices[0]
            inner = filled[len(frame.before) : len(filled) - len(frame.after)]
            yield FilledText(text, tuple(blanks), tokenizer.decode(inner, skip_special=False))
