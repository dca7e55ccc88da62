"""Attention weights by words or tokens: self-attention of a text, and attention of a translation to its source.

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

from lm.checkpoint import LoadedModel
from lm.config.evaluation import AttentionUnit
from lm.config.model import check_heads_given
from lm.corpus.tree_positions import OUTSIDE_TREE
from lm.decoding.translation import TranslationModel
from lm.errors import UsageError, nan_logits_error
from lm.model.attention import capture_attention_weights
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from lm.text.dependency_trees import check_heads, compute_tree_positions
from lm.text.records import Record
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices
from lm.tokenizer.special_tokens import build_pair_frames, build_text_frame
from lm.tokenizer.tokenizer import Tokenizer

Weights = npt.NDArray[np.float32]

_START, _END = "<s>", "</s>"


class SpecialToken(NamedTuple):
    """A special token and its label in a map."""

    token: int
    label: str


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

    @classmethod
    def of_special(cls, tokens: Sequence[SpecialToken]) -> Axis:
        """Return an axis on which each special token is a unit."""
        labels = tuple(special.label for special in tokens)
        return cls(tuple(special.token for special in tokens), tuple(range(len(tokens))), labels, (None,) * len(tokens))

    @classmethod
    def of_text(cls, tokenizer: Tokenizer, text: str, unit: AttentionUnit) -> Axis:
        tokens = tokenizer.encode(text) if text else []
        ends = TokenOffsets(tokenizer).ends(Record.of_text(text), np.array(tokens)).tolist() if tokens else []
        return cls._build(tokenizer, text, tokens, ends, unit)

    @classmethod
    def of_tokens(cls, tokenizer: Tokenizer, tokens: Sequence[int], unit: AttentionUnit) -> Axis:
        """Return the axis of generated tokens."""
        stream = tokenizer.decode_stream()
        parts = [stream.feed(index) for index in tokens]
        ends = np.cumsum([len(part.encode()) for part in parts], dtype=np.int64).tolist()
        text = "".join(parts) + stream.finish()
        return cls._build(tokenizer, text, tokens, [*ends[:-1], len(text.encode())][: len(ends)], unit)

    @classmethod
    def _build(
        cls, tokenizer: Tokenizer, text: str, tokens: Sequence[int], ends: Sequence[int], unit: AttentionUnit
    ) -> Axis:
        """Return an axis of tokens that end at these bytes of a text."""
        spelled, word_of = text.split(), assign_word_indices(text, ends)
        if unit == "tokens":
            labels = [tokenizer.token_bytes(index).decode(errors="replace") for index in tokens]
            words: Sequence[int | None] = word_of if spelled else [None] * len(tokens)
            return cls(tuple(tokens), tuple(range(len(tokens))), tuple(labels), tuple(words))
        labels = (spelled or [text]) if tokens else []
        return cls(tuple(tokens), tuple(word_of), tuple(labels), tuple(range(len(labels)) if spelled else [None]))

    def __add__(self, after: Axis) -> Axis:
        units = (*self.units, *(len(self.labels) + unit for unit in after.units))
        return Axis(self.tokens + after.tokens, units, self.labels + after.labels, self.words + after.words)

    @property
    def members(self) -> Weights:
        """Return (tokens, units): 1 where a token is part of a unit."""
        return np.eye(len(self.labels), dtype=np.float32)[list(self.units)]


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights between the units of two texts, or of one.

    Attributes:
        kind: "self"; for translations "cross" (to the source) or "joint" (to the source and earlier target words).
        queries: the units that attend. In a translation, a unit attends while it is being predicted.
        weights: (layers, heads, queries, keys); rows sum to one.
        is_causal: whether weights right of the diagonal are masked.
        texts: the text, and its translation if there is one.
    """

    kind: str
    queries: Axis
    keys: Axis
    weights: Weights
    is_causal: bool = False
    texts: tuple[str, ...] = ()

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
        chosen = self.weights
        for axis, (name, number) in enumerate((("layer", layer), ("head", head))):
            if number is not None and number > chosen.shape[axis]:
                raise UsageError(f"{name} {number}: there are {chosen.shape[axis]} (--{name})")
            chosen = chosen if number is None else chosen.take([number - 1], axis=axis)
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
                pairs.add((self.keys.words[columns[int(weights[row, columns].argmax())]] or 0, word))
        return sorted(pairs)

    def pharaoh(self, *, layer: int | None = None, head: int | None = None) -> str:
        """Return the alignments in Pharaoh format: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignments(layer=layer, head=head))


@torch.inference_mode()
def compute_attention(
    loaded: LoadedModel,
    text: str,
    target: str | None = None,
    *,
    unit: AttentionUnit = "words",
    to: str | None = None,
    dependency_heads: Sequence[int] | None = None,
) -> AttentionMap:
    """Compute the attention of a model to a text: self-attention, or that of a translation.

    Args:
        target: a translation of the text, to show its attention to the text.
        unit: rows and columns: words or tokens.
        to: the target language, for models with several.
        dependency_heads: dependency heads of the words, for a model that reads dependency trees.

    Raises:
        InputError: the heads are not a tree of the words.
        UsageError: the model does not translate, or not into this language; it has no such attention; dependency
            heads are given or missing; or a text exceeds its positions.
    """
    config, model = loaded.config.model, loaded.model
    if config.is_recurrent and (target is None or config.recurrent_attention == "none"):
        raise UsageError(f"{loaded.folder}: recurrent layers have no self-attention, and none attend to a text alone")
    check_heads_given(config, are_given=dependency_heads is not None)
    if dependency_heads is not None:
        check_heads(dependency_heads, text, where="the text")
    if target is not None:
        translates = TranslationModel.from_loaded(loaded)
        return compute_translation_attention(
            translates, text, loaded.tokenizer.encode(target), unit=unit, to=to, dependency_heads=dependency_heads
        )
    tokenizer = loaded.source_tokenizer or loaded.tokenizer
    frame = build_text_frame(tokenizer)
    before = [SpecialToken(token, _START) for token in frame.before]
    if config.translates:
        before = _direction_tokens(TranslationModel.from_loaded(loaded), to)
    elif to is not None:
        raise UsageError(f"{loaded.folder}: this run {loaded.config.purpose}; it has no language {to!r}")
    is_framed = config.translates or isinstance(model, EncoderOnly)
    after = Axis.of_special([SpecialToken(token, _END) for token in frame.after if is_framed])
    axis = Axis.of_special(before) + Axis.of_text(tokenizer, text, unit) + after
    if not axis.tokens:
        raise UsageError("there is no text to attend to")
    if len(axis.tokens) > config.context_length:
        raise UsageError(f"the text has {len(axis.tokens):,} tokens, but the context is {config.context_length:,}")
    stack = model.encoder if isinstance(model, EncoderDecoder) else model.decoder
    with capture_attention_weights(stack.attention_layers()) as layers:
        if isinstance(model, EncoderDecoder):
            model.encode(_encode_source(axis, dependency_heads, model))
        else:
            model.hidden(_as_batch(axis.tokens, model))
    weights = _merge_to_units(layers, axis, axis)
    return AttentionMap("self", axis, axis, weights, isinstance(model, DecoderOnly), (text,))


@torch.inference_mode()
def compute_translation_attention(
    translates: TranslationModel,
    source: str,
    tokens: Sequence[int],
    *,
    unit: AttentionUnit,
    to: str | None,
    dependency_heads: Sequence[int] | None = None,
) -> AttentionMap:
    """Compute the attention of a translation: to its source and, without an encoder, to earlier target words.

    Args:
        tokens: IDs of its translation, with or without the end token.
        unit: rows and columns: words or tokens.
        dependency_heads: valid dependency heads of the source, for a model that reads dependency trees.

    Raises:
        UsageError: there is no such language, or a text exceeds the learned positions.
    """
    model, tokenizer = translates.model, translates.tokenizer
    tokens = [token for token in tokens if token < tokenizer.vocab_size]  # the others have no text
    frames = build_pair_frames(tokenizer, translates.source_tokenizer)
    ends = [Axis.of_special([SpecialToken(token, _END) for token in each.after])
            for each in (frames.source, frames.target)]  # fmt: skip
    read = Axis.of_special(_direction_tokens(translates, to))
    read += Axis.of_text(translates.source_tokenizer, source, unit) + ends[0]
    body = Axis.of_tokens(tokenizer, [token for token in tokens if token not in frames.target.after], unit)
    written, texts = body + ends[1], (source, tokenizer.decode(tokens))
    if isinstance(model, EncoderDecoder):
        with capture_attention_weights(model.decoder.attention_layers(cross=True)) as layers:
            memory = model.encode(_encode_source(read, dependency_heads, model))
            model.hidden(_as_batch((frames.start, *written.tokens[:-1]), model), encoder_output=memory)
        return AttentionMap("cross", written, read, _merge_to_units(layers, written, read), texts=texts)
    earlier = Axis(body.tokens, body.units, body.labels, (None,) * len(body.labels))
    keys = read + Axis.of_special([SpecialToken(frames.start, _START)]) + earlier
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model.hidden(_as_batch(keys.tokens, model))
    of_target = [weights[:, :, len(read.tokens) :] for weights in layers]
    return AttentionMap("joint", written, keys, _merge_to_units(of_target, written, keys), texts=texts)


def _direction_tokens(model: TranslationModel, to: str | None) -> list[SpecialToken]:
    tag = model.tag_to(to)
    return [] if tag is None else [SpecialToken(tag.id, tag.token)]


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
