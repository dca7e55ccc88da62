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

from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.inference import ExportConfig
from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.interop.ctranslate2.specification import check_supported, create_specification, fill_weights
from lm.run_folder import SOURCE_TOKENIZER, TOKENIZER
from lm.tokenizer.tokenizer import Tokenizer


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, for CTranslate2, atomically."""
    folder = run_folder.find_checkpoint(run)
    model = run_folder.load_config(folder).model
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(folder)
    spec = build_specification(model, checkpoint.load_weights(folder), tokenizer, source_tokenizer or tokenizer)
    spec.optimize(quantization=config.type)
    with files.atomic_new(out) as fresh:
        fresh.mkdir()
        spec.save(str(fresh))
        tokenizer.save(fresh / TOKENIZER)
        if source_tokenizer is not None:
            source_tokenizer.save(fresh / SOURCE_TOKENIZER)
    return {"model": f"for ctranslate2.{'Translator' if model.is_encoder_decoder else 'Generator'}, {config.type}"}


def build_specification(
    config: ModelConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer, source_tokenizer: Tokenizer
) -> Any:
    """Build CTranslate2's model specification with weights and vocabularies; there is no unknown token.

    Raises:
        InputError: the package is not installed.
        UsageError: CTranslate2 does not support a part of the model or tokenizer.
    """
    check_supported(config)
    start, end = tokenizer.start_token, tokenizer.token(-1 if tokenizer.end_of_text is None else tokenizer.end_of_text)
    if start is None or end is None:
        raise UsageError("CTranslate2 needs a token that ends a text, and this tokenizer has none")
    spec = create_specification(config)
    fill_weights(spec, weights, config)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = start, end, end
    target = _token_names(tokenizer, config.vocab_size)
    if config.is_encoder_decoder:
        if source_tokenizer.end_of_text != source_tokenizer.token_id(end):
            raise UsageError(f"CTranslate2 ends source and target by one token, but {end} does not end a source")
        spec.config.decoder_start_token, spec.config.add_source_eos = start, True
        spec.register_source_vocabulary(_token_names(source_tokenizer, config.source_vocab_size or config.vocab_size))
        spec.register_target_vocabulary(target)
    else:
        spec.register_vocabulary(target)
    spec.validate()
    return spec


def _token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the tokens by ID, with unused names for unused IDs."""
    return [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]
