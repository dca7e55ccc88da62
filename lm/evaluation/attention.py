"""The attention of a loaded model: to a text that a GPT or an encoder reads, or of a translation to its source."""

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
    """An attention map with the texts it belongs to.

    Attributes:
        map: the weights.
        texts: what was read, and the translation if there is one; they are shown above the map.
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
    heads: Sequence[int] | None = None,
) -> TextAttention:
    """How a model looks at a text.

    Args:
        loaded: the model with its tokenizers.
        text: what the model reads.
        target: a translation of the text, to show how its words look at those of the text.
        unit: what rows and columns are: words, or tokens.
        to: the language, for models that translate into several.
        heads: of the words of the text, for a model that reads dependency trees.

    Raises:
        InputError: the heads are no tree of the words.
        UsageError: the model does not translate, or not into this language; it has no such attention; it reads no
            trees and there are heads, or the other way round; or a text is longer than its positions reach.
    """
    _check_attention(loaded, to_source=target is not None)
    check_heads_given(loaded.config.model, are_given=heads is not None)
    if heads is not None:
        check_heads(heads, text, where="the text")
    if target is not None:
        model = TranslationModel.of(loaded)
        return compute_translation_attention(model, text, model.tokenizer.encode(target), unit=unit, to=to, heads=heads)
    if not isinstance(loaded.model, EncoderOnly) and loaded.model.config.translates:
        return _compute_source_attention(TranslationModel.of(loaded), text, unit=unit, to=to, heads=heads)
    if to is not None:
        raise UsageError(
            f"{loaded.folder}: this run {loaded.model.config.purpose}; it has no language {to!r}", settings=["to"]
        )
    assert not isinstance(loaded.model, EncoderDecoder), "that translates"
    return _compute_text_attention(loaded.model, loaded.tokenizer, text, unit=unit)


def _check_attention(loaded: LoadedModel, *, to_source: bool) -> None:
    """UsageError where a model of recurrent layers has no attention to look at."""
    config = loaded.config.model
    if not config.is_recurrent or (to_source and config.recurrent_attention != "none"):
        return
    if config.is_encoder_decoder and config.recurrent_attention != "none":
        raise UsageError(
            f"{loaded.folder}: recurrent layers attend only to a source: give a translation", settings=["target"]
        )
    raise UsageError(f"{loaded.folder}: this run's model has recurrent layers and no attention")


def _compute_text_attention(
    model: DecoderOnly | EncoderOnly, tokenizer: Tokenizer, text: str, *, unit: AttentionUnit
) -> TextAttention:
    """How a model looks at a text: a GPT's words at themselves and at what comes before, a masked one's at all."""
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
    heads: Sequence[int] | None,
) -> TextAttention:
    """How a source is looked at: in an encoder each word looks at all of it, else at itself and what comes before."""
    tokenizer = model.source_tokenizer
    after = SpecialToken.after(build_text_frame(tokenizer))
    axis = attention_maps.build_text_axis(tokenizer, text, before=_direction_tokens(model, to), after=after, unit=unit)
    if isinstance(model.model, EncoderDecoder):
        return TextAttention(attention_maps.compute_encoder_attention(model.model, axis, heads=heads), (text,))
    return TextAttention(attention_maps.compute_self_attention(model.model, axis), (text,))


def compute_translation_attention(
    model: TranslationModel,
    source: str,
    tokens: Sequence[int],
    *,
    unit: AttentionUnit,
    to: str | None,
    heads: Sequence[int] | None = None,
) -> TextAttention:
    """How a translation looks at its source, and in a model without an encoder at itself too.

    Args:
        model: one that translates, with its tokenizers.
        source: the line that was translated.
        tokens: ids of its translation, with or without the end token.
        unit: what rows and columns are: words, or tokens.
        to: the language, for models that translate into several.
        heads: of the words of the line, for a model that reads dependency trees; they are a tree.

    Raises:
        UsageError: there is no such language, or a text is longer than learned positions reach.
    """
    tokens = [token for token in tokens if token < model.tokenizer.vocab_size]  # the others have no text
    found = attention_maps.compute_translation_map(
        model.model, tokenizer=model.tokenizer, source_tokenizer=model.source_tokenizer, source=source, tokens=tokens,
        heads=heads, tags=_direction_tokens(model, to), unit=unit,
    )  # fmt: skip
    return TextAttention(found, (source, model.tokenizer.decode(tokens)))


def _direction_tokens(model: TranslationModel, to: str | None) -> list[SpecialToken]:
    """The special token before a source, for models that translate into several languages."""
    tag = model.tag_to(to)
    return [] if tag is None else [SpecialToken(tag.id, tag.token)]
