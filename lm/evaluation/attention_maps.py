"""Attention weights by words: self-attention of a text, and cross-attention of a translation to its source.

Tokens are merged into words: weights of keys are summed, those of queries averaged, so that each row still sums to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lm.config.evaluation import AttentionUnit
from lm.corpus.tree_positions import OUTSIDE_TREE
from lm.errors import UsageError, nan_logits_error
from lm.model.attention import capture_attention_weights
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from lm.text.dependency_trees import compute_tree_positions
from lm.text.records import Record
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_pair_frames
from lm.tokenizer.tokenizer import Tokenizer

Weights = npt.NDArray[np.float32]

START, END = "<s>", "</s>"


class SpecialToken(NamedTuple):
    """A special token and its label in a map."""

    token: int
    label: str

    @classmethod
    def before(cls, frame: SpecialTokenFrame) -> list[SpecialToken]:
        return [cls(index, START) for index in frame.before]

    @classmethod
    def after(cls, frame: SpecialTokenFrame) -> list[SpecialToken]:
        return [cls(index, END) for index in frame.after]


@dataclass(frozen=True)
class Axis:
    """One axis of a map: units (words or tokens) and their tokens.

    Attributes:
        tokens: (tokens,) IDs.
        units: (tokens,) unit of each token.
        labels: (units,) text of each unit.
        words: (units,) whitespace-separated word of each unit, from 0; None for special tokens.
    """

    tokens: tuple[int, ...]
    units: tuple[int, ...]
    labels: tuple[str, ...]
    words: tuple[int | None, ...]

    @property
    def members(self) -> Weights:
        """Return (tokens, units): 1 where a token is part of a unit."""
        indicator = np.zeros((len(self.units), len(self.labels)), dtype=np.float32)
        indicator[np.arange(len(self.units)), list(self.units)] = 1
        return indicator


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights between the units of two texts, or of one.

    Attributes:
        kind: "self"; for translations "cross" (to the source) or "joint" (to the source and earlier target words).
        queries: the units that attend. In a translation, a unit attends while it is being predicted.
        weights: (layers, heads, queries, keys); rows sum to one.
        is_causal: whether weights right of the diagonal are masked.
    """

    kind: str
    queries: Axis
    keys: Axis
    weights: Weights
    is_causal: bool = False

    def __repr__(self) -> str:
        layers, heads, queries, keys = self.weights.shape
        return f"<AttentionMap {self.kind}: {layers} layers, {heads} heads, {queries} queries, {keys} keys>"

    @property
    def is_of_translation(self) -> bool:
        """Return whether queries are target words, and keys include source words."""
        return self.kind != "self"

    def mean(self, *, layer: int | None = None, head: int | None = None) -> Weights:
        """Return (queries, keys): the mean over layers and heads, or of one layer or head, from 1.

        Raises:
            UsageError: there is no such layer or head.
        """
        layers, heads = self.weights.shape[:2]
        for name, value, count in (("layer", layer, layers), ("head", head, heads)):
            if value is not None and value > count:
                raise UsageError(f"{name} {value}: there are {count} (--{name})")
        chosen = self.weights[_select(layer), _select(head)]
        return chosen.mean(axis=(0, 1))

    def alignments(self, *, layer: int | None = None, head: int | None = None) -> list[tuple[int, int]]:
        """Return word alignments: pairs of a key (source) word and a query (target) word, from 0.

        Each target word is aligned with the source word with the highest weight; several target words may align with
        one source word, and some source words with none.
        """
        weights = self.mean(layer=layer, head=head)
        columns = [index for index, word in enumerate(self.keys.words) if word is not None]
        pairs = set()
        for row, word in enumerate(self.queries.words):
            if word is not None and columns and weights[row].any():
                best = self.keys.words[columns[int(weights[row, columns].argmax())]]
                assert best is not None
                pairs.add((best, word))
        return sorted(pairs)

    def pharaoh(self, *, layer: int | None = None, head: int | None = None) -> str:
        """Return the alignments in Pharaoh format: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignments(layer=layer, head=head))


def _select(number: int | None) -> slice:
    return slice(None) if number is None else slice(number - 1, number)


def build_text_axis(
    tokenizer: Tokenizer,
    text: str,
    *,
    before: Sequence[SpecialToken] = (),
    after: Sequence[SpecialToken] = (),
    unit: AttentionUnit,
) -> Axis:
    """Tokenize a text and build its axis, with special tokens around it."""
    tokens = tokenizer.encode(text) if text else []
    ends = TokenOffsets(tokenizer).ends(Record.of_text(text), np.array(tokens)).tolist() if tokens else []
    return _build_axis(tokenizer, text, tokens, ends, before=before, after=after, unit=unit)


def build_token_axis(
    tokenizer: Tokenizer, tokens: Sequence[int], *, after: Sequence[SpecialToken] = (), unit: AttentionUnit
) -> Axis:
    """Build the axis of generated tokens, with special tokens after them."""
    stream = tokenizer.decode_stream()
    parts = [stream.feed(index) for index in tokens]
    ends = np.cumsum([len(part.encode()) for part in parts], dtype=np.int64).tolist()
    text = "".join(parts) + stream.finish()
    if ends:
        ends[-1] = len(text.encode())
    return _build_axis(tokenizer, text, tokens, ends, before=(), after=after, unit=unit)


def _build_axis(
    tokenizer: Tokenizer,
    text: str,
    tokens: Sequence[int],
    ends: Sequence[int],
    *,
    before: Sequence[SpecialToken],
    after: Sequence[SpecialToken],
    unit: AttentionUnit,
) -> Axis:
    """Build an axis from tokens and their byte offsets; special tokens are units of their own."""
    spelled, word_of = text.split(), assign_word_indices(text, ends)
    if unit == "tokens":
        labels = [tokenizer.token_bytes(index).decode(errors="replace") for index in tokens]
        units, words = list(range(len(tokens))), word_of
    else:
        labels = (spelled or [text]) if tokens else []
        units, words = word_of, list(range(len(labels)))
    first, last = len(before), len(before) + len(labels)
    return Axis(
        tokens=(*(special.token for special in before), *tokens, *(special.token for special in after)),
        units=(*range(first), *(first + offset for offset in units), *range(last, last + len(after))),
        labels=(*(special.label for special in before), *labels, *(special.label for special in after)),
        words=(*[None] * first, *(word if spelled else None for word in words), *[None] * len(after)),
    )


@torch.inference_mode()
def compute_self_attention(model: DecoderOnly | EncoderOnly, text: Axis) -> AttentionMap:
    """Compute the self-attention of a text: causal in a GPT, bidirectional in a masked model.

    Raises:
        UsageError: the text is empty or exceeds the context.
    """
    _check_length(text, model.config.context_length)
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model.hidden(_as_batch(text.tokens, model))
    return AttentionMap(
        "self", text, text, _merge_to_units(layers, text, text), is_causal=isinstance(model, DecoderOnly)
    )


@torch.inference_mode()
def compute_encoder_attention(
    model: EncoderDecoder, source: Axis, *, dependency_heads: Sequence[int] | None = None
) -> AttentionMap:
    """Compute the self-attention of a source; errors as of `compute_self_attention`.

    Args:
        source: the encoder input, special tokens included.
        dependency_heads: dependency heads of its words, for a model that reads dependency trees.
    """
    _check_length(source, model.config.context_length)
    with capture_attention_weights(model.encoder.attention_layers()) as layers:
        model.encode(_encode_source(source, dependency_heads, model))
    return AttentionMap("self", source, source, _merge_to_units(layers, source, source))


@torch.inference_mode()
def compute_cross_attention(
    model: EncoderDecoder, source: Axis, target: Axis, *, start: int, dependency_heads: Sequence[int] | None = None
) -> AttentionMap:
    """Compute the attention of each target unit to the source while it is being predicted.

    Args:
        source: the encoder input, special tokens included.
        target: the decoder output, end token included if there is one.
        start: the first decoder input.
        dependency_heads: dependency heads of the source, for a model that reads dependency trees.

    Raises:
        UsageError: source or target exceeds the learned positions.
    """
    with capture_attention_weights(model.decoder.attention_layers(cross=True)) as layers:
        memory = model.encode(_encode_source(source, dependency_heads, model))
        model.hidden(_as_batch((start, *target.tokens[:-1]), model), encoder_output=memory)
    return AttentionMap("cross", target, source, _merge_to_units(layers, target, source))


@torch.inference_mode()
def compute_joint_attention(model: DecoderOnly, source: Axis, target: Axis, *, start: int) -> AttentionMap:
    """Compute the attention of each target unit, to the source and earlier target units, in a decoder-only model.

    Args:
        source: the input, special tokens included.
        target: the output, end token included.
        start: the token between them.

    Raises:
        UsageError: source and target together exceed the learned positions.
    """
    start_axis = Axis((start,), (0,), (START,), (None,))
    read = _concatenate_axes(source, start_axis, _without_last(target))
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model.hidden(_as_batch(read.tokens, model))
    target_weights = [weights[:, :, len(source.tokens) :] for weights in layers]
    return AttentionMap("joint", target, read, _merge_to_units(target_weights, target, read))


def _without_last(axis: Axis) -> Axis:
    """Return a target axis as input: without its end token and without word indices."""
    labels = axis.labels[:-1]
    return Axis(axis.tokens[:-1], axis.units[:-1], labels, (None,) * len(labels))


def _concatenate_axes(*axes: Axis) -> Axis:
    first = np.cumsum([0, *(len(axis.labels) for axis in axes)]).tolist()
    return Axis(
        tokens=tuple(token for axis in axes for token in axis.tokens),
        units=tuple(offset + unit for offset, axis in zip(first, axes, strict=False) for unit in axis.units),
        labels=tuple(label for axis in axes for label in axis.labels),
        words=tuple(word for axis in axes for word in axis.words),
    )


def compute_translation_map(
    model: DecoderOnly | EncoderDecoder,
    *,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    source: str,
    tokens: Sequence[int],
    dependency_heads: Sequence[int] | None = None,
    tags: Sequence[SpecialToken] = (),
    unit: AttentionUnit = "words",
) -> AttentionMap:
    """Compute the attention of a translation: to its source and, without an encoder, to earlier target words.

    Args:
        tokens: IDs of its translation, with or without the end token.
        dependency_heads: dependency heads of the source, for a model that reads dependency trees.
        tags: special tokens before the source, such as the language tag.
        unit: rows and columns of the map.

    Raises:
        UsageError: a tokenizer has no end token, or a text exceeds the learned positions.
    """
    frames = build_pair_frames(tokenizer, source_tokenizer)
    body = [index for index in tokens if index not in frames.target.after]
    read = build_text_axis(source_tokenizer, source, before=tags, after=SpecialToken.after(frames.source), unit=unit)
    written = build_token_axis(tokenizer, body, after=SpecialToken.after(frames.target), unit=unit)
    if isinstance(model, EncoderDecoder):
        return compute_cross_attention(model, read, written, start=frames.start, dependency_heads=dependency_heads)
    return compute_joint_attention(model, read, written, start=frames.start)


def _check_length(axis: Axis, context_length: int) -> None:
    if not axis.tokens:
        raise UsageError("there is no text to attend to")
    if len(axis.tokens) > context_length:
        raise UsageError(
            f"the text has {len(axis.tokens):,} tokens, but the model's context is {context_length:,}; give less text"
        )


def _as_batch(tokens: Sequence[int], model: Model) -> Tensor:
    return torch.tensor([tokens], dtype=torch.int64, device=next(model.parameters()).device)


def _encode_source(source: Axis, dependency_heads: Sequence[int] | None, model: EncoderDecoder) -> Tensor:
    """Return the encoder input, with tree positions if there is a tree."""
    row = _as_batch(source.tokens, model)
    if dependency_heads is None:
        return row
    words = [source.words[unit] for unit in source.units]
    in_tree = compute_tree_positions(dependency_heads)
    positions = [OUTSIDE_TREE if word is None else in_tree[word].tolist() for word in words]
    return torch.cat((row[..., None], row.new_tensor([positions])), dim=-1)


def _merge_to_units(layers: Sequence[Tensor], queries: Axis, keys: Axis) -> Weights:
    """Merge (1, heads, query tokens, key tokens) of each layer to (layers, heads, query units, key units).

    Raises:
        InputError: a weight is not a number.
    """
    query_weights = queries.members / np.maximum(queries.members.sum(axis=0), 1)
    weights = torch.cat(tuple(layers)).cpu().numpy()
    if not np.isfinite(weights).all():
        raise nan_logits_error()
    return np.asarray(query_weights.T @ (weights @ keys.members), dtype=np.float32)
