"""Attention weights by words or tokens: self-attention of a text, and attention of a translation to its source.

Tokens are merged into words: weights of keys are summed, those of queries averaged, so that each row still sums to one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.config.inference import AttentionUnit
from lm.config.model import check_heads_given
from lm.corpus import RaggedArray
from lm.corpus.encode import TreeReader, wrap_sources
from lm.decoding.translation import TranslationModel
from lm.errors import UsageError, nan_logits_error
from lm.model import DecoderOnly, EncoderDecoder
from lm.model.attention import capture_attention_weights
from lm.text import Record
from lm.text.parallel_text import check_heads
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import SpecialTokenFrame, build_pair_frames, build_text_frame
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices

Weights = npt.NDArray[np.float32]

_START, _END = "<s>", "</s>"


class Unit(NamedTuple):
    """A row or column of a map: a word, a token or a special token.

    Attributes:
        tokens: its IDs; none if a token of the word before spans it.
        number: in its text, from 0; None for special tokens.
    """

    label: str
    tokens: tuple[int, ...]
    number: int | None = None


def special_units(tokens: Iterable[int], label: str) -> list[Unit]:
    return [Unit(label, (token,)) for token in tokens]


def text_units(tokenizer: Tokenizer, text: str, unit: AttentionUnit) -> list[Unit]:
    tokens = tokenizer.encode(text)
    ends = TokenOffsets(tokenizer).ends(Record.of_text(text), np.array(tokens)).tolist() if tokens else []
    return _divide(tokenizer, text, tokens, ends, unit)


def token_units(tokenizer: Tokenizer, tokens: Sequence[int], unit: AttentionUnit) -> list[Unit]:
    """Return the units of generated tokens."""
    stream = tokenizer.decode_stream()
    parts = [stream.feed(index) for index in tokens]
    ends = np.cumsum([len(part.encode()) for part in parts], dtype=np.int64).tolist()
    return _divide(tokenizer, "".join(parts) + stream.finish(), tokens, ends, unit)


def _divide(
    tokenizer: Tokenizer, text: str, tokens: Sequence[int], ends: Sequence[int], unit: AttentionUnit
) -> list[Unit]:
    """Return the units of tokens that end at these bytes of a text."""
    if unit == "tokens":
        labels = (tokenizer.token_bytes(token).decode(errors="replace") for token in tokens)
        return [Unit(label, (token,), number) for number, (label, token) in enumerate(zip(labels, tokens, strict=True))]
    words, own = assign_word_indices(text, ends), defaultdict[int, tuple[int, ...]](tuple)
    for word, token in zip(words, tokens, strict=True):
        own[word] += (token,)
    return [Unit(label, own[number], number) for number, label in enumerate(text.split() or [text][: len(tokens)])]


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights between the units of two texts, or of one.

    Attributes:
        kind: "self"; for translations "cross" (to the source) or "joint" (to the source and earlier target words).
        queries: the units that attend. In a translation, a unit attends while it is being predicted.
        weights: (layers, heads, queries, keys); rows sum to one.
        texts: the text, and its translation if there is one.
    """

    kind: str
    queries: Sequence[Unit]
    keys: Sequence[Unit]
    weights: Weights
    texts: tuple[str, ...]

    def mean(self, *, layer: int | None = None, head: int | None = None) -> Weights:
        """Return (queries, keys): the mean over layers and heads, or of one layer or head, from 1.

        Raises:
            UsageError: there is no such layer or head.
        """
        chosen = self.weights
        for axis, (name, number) in enumerate((("layer", layer), ("head", head))):
            if number is not None and not 1 <= number <= chosen.shape[axis]:
                raise UsageError(f"{name} {number}: there are {chosen.shape[axis]}, from 1")
            chosen = chosen if number is None else chosen.take([number - 1], axis=axis)
        return chosen.mean(axis=(0, 1))

    def alignments(self, *, layer: int | None = None, head: int | None = None) -> list[tuple[int, int]]:
        """Return alignments: pairs of a key (source) word and a query (target) word, from 0.

        Each target word is aligned with the source word with the highest weight; several target words may align with
        one source word, and some source words with none. With tokens as units, these are aligned instead.
        """
        columns = [key.number is not None for key in self.keys]
        if not any(columns):
            return []
        weights = self.mean(layer=layer, head=head)
        best = zip(self.queries, np.where(columns, weights, -1).argmax(axis=1).tolist(), strict=True)
        pairs = [(self.keys[key].number or 0, query.number) for query, key in best if query.tokens]
        return sorted((key, query) for key, query in pairs if query is not None)

    def pharaoh(self, *, layer: int | None = None, head: int | None = None) -> str:
        """Return the alignments in Pharaoh format: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignments(layer=layer, head=head))


@torch.inference_mode()
def compute_attention(
    loaded: LoadedModel,
    text: str,
    target: str | Sequence[int] | None = None,
    *,
    unit: AttentionUnit = "words",
    to: str | None = None,
    dependency_heads: Sequence[int] | None = None,
) -> AttentionMap:
    """Compute the attention of a model to a text: self-attention, or that of a translation.

    Args:
        target: a translation of the text, or its IDs with or without the end token, to show its attention to the text
            and, without an encoder, to earlier target words.
        unit: rows and columns: words or tokens.
        to: the target language, for models with several.
        dependency_heads: dependency heads of the words, for a model that reads dependency trees.

    Raises:
        InputError: the heads are not a tree of the words.
        UsageError: the model does not translate, or not into this language; it has no such attention; dependency
            heads are given or missing; or the text exceeds its positions.
    """
    config, model, tokenizer = loaded.config.model, loaded.model, loaded.source_tokenizer or loaded.tokenizer
    if config.is_recurrent and (target is None or config.recurrent_attention == "none"):
        raise UsageError(f"{loaded.folder}: recurrent layers have no self-attention, and none attend to a text alone")
    check_heads_given(config, are_given=dependency_heads is not None)
    if config.translates or target is not None or to is not None:
        text = text.strip()  # as it is translated
        tag = TranslationModel.from_loaded(loaded).tag_to(to)
        frame, label = build_pair_frames(loaded.tokenizer, tokenizer, tag=tag).source, tag.token if tag else ""
    else:
        frame, label = build_text_frame(tokenizer), _START
        if isinstance(model, DecoderOnly):
            frame = SpecialTokenFrame(frame.before)
    ids: Any = tokenizer.encode(text)
    if dependency_heads is not None:
        check_heads(dependency_heads, text, where="the text")
        ids = TreeReader(tokenizer).read(text, ids, dependency_heads)
    device = next(model.parameters()).device
    row = torch.from_numpy(wrap_sources(RaggedArray.from_rows([ids]), frame).values)[None].to(device)
    read = special_units(frame.before, label) + text_units(tokenizer, text, unit) + special_units(frame.after, _END)
    if not row.shape[1]:
        raise UsageError("the text is empty")
    if row.shape[1] > (config.position_limit or row.shape[1]):
        raise UsageError(f"the text has {row.shape[1]:,} tokens, and the model {config.position_limit} positions")
    if target is None:
        stack = model.encoder if isinstance(model, EncoderDecoder) else model.decoder
        with capture_attention_weights(stack.attention_layers()) as layers:
            if isinstance(model, EncoderDecoder):
                model.encode(row)
            else:
                model.hidden(row)
        return AttentionMap("self", read, read, _merge(layers, read, read), (text,))
    frames = build_pair_frames(loaded.tokenizer)
    tokens = loaded.tokenizer.encode(target) if isinstance(target, str) else target
    tokens = [token for token in tokens if token < loaded.tokenizer.vocab_size and token not in frames.target.after]
    body, texts = token_units(loaded.tokenizer, tokens, unit), (text, loaded.tokenizer.decode(tokens))
    written, inputs = body + special_units(frames.target.after, _END), row.new_tensor([[frames.start, *tokens]])
    if isinstance(model, EncoderDecoder):
        with capture_attention_weights(model.decoder.attention_layers(cross=True)) as layers:
            model.hidden(inputs, encoder_output=model.encode(row))
        return AttentionMap("cross", written, read, _merge(layers, written, read), texts)
    assert isinstance(model, DecoderOnly)
    keys = read + special_units([frames.start], _START) + [each._replace(number=None) for each in body]
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model.hidden(torch.cat((row, inputs), dim=1))
    of_target = [weights[:, :, row.shape[1] :] for weights in layers]
    return AttentionMap("joint", written, keys, _merge(of_target, written, keys), texts)


def _merge(layers: Sequence[Tensor], queries: Sequence[Unit], keys: Sequence[Unit]) -> Weights:
    """Merge (1, heads, query tokens, key tokens) of each layer to (layers, heads, query units, key units).

    Raises:
        InputError: a weight is not a number.
    """
    of_queries, of_keys = (  # (tokens, units): 1 where a token is part of a unit
        np.eye(len(units), dtype=np.float32).repeat([len(unit.tokens) for unit in units], axis=0)
        for units in (queries, keys)
    )
    weights = torch.cat(tuple(layers)).cpu().numpy()
    if not np.isfinite(weights).all():
        raise nan_logits_error()
    averages = of_queries / np.maximum(of_queries.sum(axis=0), 1)
    return np.asarray(averages.T @ (weights @ of_keys), dtype=np.float32)
