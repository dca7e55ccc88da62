"""Attention maps of a loaded model: of a text read by a GPT or an encoder, or of a translation and its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lm.checkpoint import LoadedModel
from lm.config.evaluation import AttentionUnit
from lm.config.model import check_heads_given
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.evaluation import attention_maps
from lm.evaluation.attention_maps import AttentionMap, SpecialToken
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from lm.text.dependency_trees import check_heads
from lm.tokenizer.special_tokens import build_text_frame
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextAttention:
    """An attention map with its texts.

    Attributes:
        texts: the text, and its translation if there is one, shown above the map.
    """

    map: AttentionMap
    texts: tuple[str, ...]


def compute_attention(
    loaded: LoadedModel,
    text: str,
    target: str | None = None,
    *,
    unit: AttentionUnit = "words",
    to: str | None = None,
    dependency_heads: Sequence[int] | None = None,
) -> TextAttention:
    """Compute the attention of a model to a text.

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
    _check_attention(loaded, to_source=target is not None)
    check_heads_given(loaded.config.model, are_given=dependency_heads is not None)
    if dependency_heads is not None:
        check_heads(dependency_heads, text, where="the text")
    if target is not None:
        model = TranslationModel.from_loaded(loaded)
        return compute_translation_attention(
            model, text, model.tokenizer.encode(target), unit=unit, to=to, dependency_heads=dependency_heads
        )
    if not isinstance(loaded.model, EncoderOnly) and loaded.model.config.translates:
        return _compute_source_attention(
            TranslationModel.from_loaded(loaded), text, unit=unit, to=to, dependency_heads=dependency_heads
        )
    if to is not None:
        raise UsageError(f"{loaded.folder}: this run {loaded.config.purpose}; it has no language {to!r}")
    assert not isinstance(loaded.model, EncoderDecoder), "that translates"
    return _compute_text_attention(loaded.model, loaded.tokenizer, text, unit=unit)


def _check_attention(loaded: LoadedModel, *, to_source: bool) -> None:
    """Raise UsageError if a recurrent model has no attention."""
    config = loaded.config.model
    if not config.is_recurrent or (to_source and config.recurrent_attention != "none"):
        return
    if config.is_encoder_decoder and config.recurrent_attention != "none":
        raise UsageError(f"{loaded.folder}: recurrent layers attend only to a source: give a translation")
    raise UsageError(f"{loaded.folder}: this run's model has recurrent layers and no attention")


def _compute_text_attention(
    model: DecoderOnly | EncoderOnly, tokenizer: Tokenizer, text: str, *, unit: AttentionUnit
) -> TextAttention:
    """Compute self-attention: causal in a GPT, bidirectional in a masked model."""
    frame = build_text_frame(tokenizer)
    after = SpecialToken.after(frame) if isinstance(model, EncoderOnly) else ()
    axis = attention_maps.build_text_axis(tokenizer, text, before=SpecialToken.before(frame), after=after, unit=unit)
    return TextAttention(attention_maps.compute_self_attention(model, axis), (text,))


def _compute_source_attention(
    model: TranslationModel,
    text: str,
    *,
    unit: AttentionUnit,
    to: str | None,
    dependency_heads: Sequence[int] | None,
) -> TextAttention:
    """Compute self-attention of a source: bidirectional in an encoder, else causal."""
    tokenizer = model.source_tokenizer
    after = SpecialToken.after(build_text_frame(tokenizer))
    axis = attention_maps.build_text_axis(tokenizer, text, before=_direction_tokens(model, to), after=after, unit=unit)
    if isinstance(model.model, EncoderDecoder):
        return TextAttention(
            attention_maps.compute_encoder_attention(model.model, axis, dependency_heads=dependency_heads), (text,)
        )
    return TextAttention(attention_maps.compute_self_attention(model.model, axis), (text,))


def compute_translation_attention(
    model: TranslationModel,
    source: str,
    tokens: Sequence[int],
    *,
    unit: AttentionUnit,
    to: str | None,
    dependency_heads: Sequence[int] | None = None,
) -> TextAttention:
    """Compute the attention of a translation to its source and, without an encoder, to itself.

    Args:
        tokens: IDs of its translation, with or without the end token.
        unit: rows and columns: words or tokens.
        dependency_heads: valid dependency heads of the source, for a model that reads dependency trees.

    Raises:
        UsageError: there is no such language, or a text exceeds the learned positions.
    """
    tokens = [token for token in tokens if token < model.tokenizer.vocab_size]  # the others have no text
    attention_map = attention_maps.compute_translation_map(
        model.model, tokenizer=model.tokenizer, source_tokenizer=model.source_tokenizer, source=source, tokens=tokens,
        dependency_heads=dependency_heads, tags=_direction_tokens(model, to), unit=unit,
    )  # fmt: skip
    return TextAttention(attention_map, (source, model.tokenizer.decode(tokens)))


def _direction_tokens(model: TranslationModel, to: str | None) -> list[SpecialToken]:
    tag = model.tag_to(to)
    return [] if tag is None else [SpecialToken(tag.id, tag.token)]
