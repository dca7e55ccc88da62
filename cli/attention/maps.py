"""Where a model looks: the maps of a text, of a source, and of a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.decoding.translation_input import TranslationModel
    from lm.evaluation.attention_maps import AttentionMap, Special
    from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Looked:
    """A map, and what it is of.

    Attributes:
        map: the weights.
        texts: what was read, and for a translation what was written: shown above the map.
    """

    map: AttentionMap
    texts: tuple[str, ...]


def look(
    run: Path, text: str, target: str | None, config: AttentionConfig, *, to: str | None, hardware: HardwareConfig
) -> Looked:
    """How a run looks at a text: a GPT at what came before, an encoder at a source, or a translation at its source."""
    from lm.checkpoint import load_model
    from lm.decoding.translation_input import TranslationModel
    from lm.evaluation import attention_maps as maps
    from lm.hardware import inference_hardware
    from lm.model.transformer import DecoderOnly

    loaded = load_model(run, inference_hardware(hardware))
    if target is not None:
        model = TranslationModel.of(loaded)
        return looked_at(model, text, model.tokenizer.encode(target), config, to=to)
    if isinstance(loaded.model, DecoderOnly):
        if to is not None:
            raise UsageError(f"{run}: this run continues texts; there is no --to {to}")
        start = loaded.tokenizer.start_of_text
        before = [] if start is None else [maps.Special(start, maps.START)]
        axis = maps.axis_of_text(loaded.tokenizer, text, before=before, unit=config.unit)
        return Looked(maps.self_attention(loaded.model, axis), (text,))
    reader = loaded.source_tokenizer or loaded.tokenizer
    after = [] if reader.end_of_text is None else [maps.Special(reader.end_of_text, maps.END)]
    axis = maps.axis_of_text(reader, text, before=_tags(reader, to), after=after, unit=config.unit)
    return Looked(maps.encoder_attention(loaded.model, axis), (text,))


def looked_at(
    model: TranslationModel, source: str, tokens: Sequence[int], config: AttentionConfig, *, to: str | None
) -> Looked:
    """How a translation looks at its source.

    Args:
        model: of an encoder-decoder.
        source: the line that was translated.
        tokens: ids of its translation, with or without the end token.
        config: what is to be shown.
        to: the language, of models that translate into several.

    Raises:
        UsageError: there is no such language, or a text is longer than learned positions reach.
    """
    from lm.evaluation.attention_maps import translation_map

    found = translation_map(
        model.model, tokenizer=model.tokenizer, source_tokenizer=model.source_tokenizer, source=source, tokens=tokens,
        tags=_tags(model.source_tokenizer, to), unit=config.unit,
    )  # fmt: skip
    return Looked(found, (source, model.tokenizer.decode(tokens)))


def _tags(tokenizer: Tokenizer, to: str | None) -> list[Special]:
    """The special token before a source, of models that translate into several languages."""
    from lm.evaluation.attention_maps import Special
    from lm.tokenizer.languages import tag_to

    tag = tag_to(tokenizer, to)
    return [] if tag is None else [Special(tag.id, tag.token)]
