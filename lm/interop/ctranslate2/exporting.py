"""A run as a folder that CTranslate2 runs: `Generator` what continues texts, `Translator` what translates.

model.bin                        the weights
config.json                      the tokens that start and end a text
vocabulary.json                  the tokens by id; of translation shared_vocabulary.json, or source_ and target_
tokenizer.json                   the tokenizer, which CTranslate2 leaves to others, and source_tokenizer.json if the
                                 source has its own

CTranslate2 reads and writes tokens as they are spelled. What a generator continues has to begin with the token that
starts a text; a translator puts the end of a source there by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm import files
from lm.checkpoint import load_model
from lm.config.export import ExportConfig, ExportDtype
from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.interop.ctranslate2.specification import check_supported, create_specification, fill_weights
from lm.model.transformer import DecoderOnly, EncoderDecoder, Model
from lm.run_folder import SOURCE_TOKENIZER, TOKENIZER
from lm.tokenizer.tokenizer import Tokenizer

_HARDWARE = Hardware("cpu", "float32", 1)


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run to a folder and return what to report; see `EXPORTERS`."""
    kind = export_ctranslate2(run, out, number_type=config.type)
    return {"model": f"for ctranslate2.{kind}, {config.type}"}


def export_ctranslate2(run: Path, folder: Path, *, number_type: ExportDtype = "float32") -> str:
    """Export a run's best checkpoint, or a checkpoint, for CTranslate2, atomically.

    Args:
        number_type: dtype of the matrices, as CTranslate2 names it.

    Returns:
        The class that runs it, "Generator" or "Translator".

    Raises:
        InputError: the run is damaged, the folder is not empty, or the package `ctranslate2` is not installed.
        UsageError: CTranslate2 does not support a part of the model.
    """
    loaded = load_model(run, _HARDWARE)
    spec = build_specification(
        loaded.model,
        tokenizer=loaded.tokenizer,
        source_tokenizer=loaded.source_tokenizer,
        number_type=number_type,
    )
    with files.atomic_new_folder(folder) as fresh:
        spec.save(str(fresh))
        loaded.tokenizer.save(fresh / TOKENIZER)
        if loaded.source_tokenizer is not None:
            loaded.source_tokenizer.save(fresh / SOURCE_TOKENIZER)
    return "Translator" if loaded.model.config.is_encoder_decoder else "Generator"


def build_specification(
    model: Model,
    *,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None = None,
    number_type: ExportDtype = "float32",
) -> Any:
    """Build CTranslate2's model specification with weights and vocabularies.

    Args:
        tokenizer: of the target, and of the source unless that has its own.
        source_tokenizer: of the source.

    Raises:
        InputError: the package is not installed.
        UsageError: CTranslate2 does not support a part of the model or tokenizer.
    """
    check_supported(model.config)
    assert isinstance(model, DecoderOnly | EncoderDecoder)
    spec = create_specification(model.config)
    fill_weights(spec, model)
    _set_tokens(spec, model.config, tokenizer, source_tokenizer or tokenizer)
    spec.validate()
    spec.optimize(quantization=number_type)
    return spec


def _set_tokens(spec: Any, config: ModelConfig, tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> None:
    """Set the vocabularies, and the start and end tokens; there is no unknown token."""
    if tokenizer.start_of_text is None or tokenizer.end_of_text is None:
        raise UsageError(
            "CTranslate2 needs a token that ends a text, and this tokenizer has none", settings=["special"]
        )
    start, end = tokenizer.token(tokenizer.start_of_text), tokenizer.token(tokenizer.end_of_text)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = start, end, end
    target = _token_names(tokenizer, config.vocab_size)
    if not config.is_encoder_decoder:
        spec.register_vocabulary(target)
        return
    source = _token_names(source_tokenizer, config.source_vocab_size or config.vocab_size)
    if source_tokenizer.end_of_text is None or source_tokenizer.token(source_tokenizer.end_of_text) != end:
        raise UsageError(f"CTranslate2 ends source and target by one token, but {end} does not end a source")
    spec.config.decoder_start_token, spec.config.add_source_eos = start, True
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)


def _token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the tokens by ID, with unused names for unused IDs."""
    return [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]
