"""Export a run for transformers, with custom code only if transformers has no such model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lm import checkpoint, files, run_folder
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.export import ExportConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.interop.hugging_face import custom_code, tokenizer_files
from lm.interop.hugging_face.configuration import explain_family, find_family, to_json
from lm.interop.hugging_face.family_schema import Family
from lm.interop.hugging_face.folder import CARD, CONFIG, GENERATION, WEIGHTS
from lm.interop.hugging_face.model_card import build_model_card
from lm.interop.hugging_face.tensors import to_family_tensors
from lm.interop.hugging_face.tokenizer_files import special_token_ids
from lm.safetensors_io import save_tensors
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ExportedModel:
    """The family a run was exported as, and what decided that."""

    family: Family
    decided_by: str

    @property
    def loading_hint(self) -> str:
        """Describe how to load it."""
        if self.family.keeps_names:
            return ", with its code in the folder (trust_remote_code=True)"
        return " of transformers, which needs no code of ours"


def export_with_report(run: Path, out: Path, _config: ExportConfig) -> Mapping[str, str]:
    """Export a run to a folder and return what to report; see `EXPORTERS`."""
    exported = export_hugging_face(run, out)
    return {"model": f"{exported.family.architecture}{exported.loading_hint}: {exported.decided_by}"}


def export_hugging_face(run: Path, folder: Path) -> ExportedModel:
    """Export a run's best checkpoint, or a checkpoint, for `AutoModelFor…` and `AutoTokenizer`, atomically.

    Raises:
        InputError: the run is damaged, or the folder is not empty or cannot be created.
        UsageError: neither transformers nor the custom code supports the model.
    """
    source = run_folder.find_checkpoint(run)
    config = run_folder.load_config(source)
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(source)
    family = find_family(config.model, tokenizer)
    try:
        with files.atomic_new_folder(folder) as fresh:
            _write(fresh, source, config, family, source_tokenizer or tokenizer)
    except SafetensorError as error:
        raise InputError(f"{folder}: cannot be written ({error})") from None
    return ExportedModel(family, explain_family(config.model, family))


def _write(folder: Path, source: Path, config: RunConfig, family: Family, tokenizer: Tokenizer) -> None:
    weights = checkpoint.load_weights(source)
    ids, dtype = (
        special_token_ids(tokenizer, config.model),
        str(next(iter(weights.values())).dtype).removeprefix("torch."),
    )
    files.write_json(folder / CONFIG, {**to_json(config.model, family), **ids, "torch_dtype": dtype})
    if not config.model.is_masked:
        files.write_json(folder / GENERATION, {**ids, **_generation_config(config.model, tokenizer)})
    tokenizer_files.write_tokenizer(folder, tokenizer, config.model)
    if family.keeps_names:
        custom_code.copy_code(folder)
    save_tensors(dict(to_family_tensors(weights, config.model, family)), folder / WEIGHTS, metadata={"format": "pt"})
    files.replace_text(folder / CARD, build_model_card(config, family, tokenizer, run_folder.load_state(source)))


def _generation_config(model: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the default sampling or beam settings of our commands."""
    if not model.is_encoder_decoder:
        ends = {"eos_token_id": list(tokenizer.stop_ids)} if len(tokenizer.stop_ids) > 1 else {}
        return {"do_sample": True, "temperature": SamplingConfig.temperature, "top_k": 0, **ends}
    start, search = tokenizer.start_of_text, TranslationConfig()
    return {
        "num_beams": search.beam, "length_penalty": search.length_penalty, "early_stopping": True,
        "max_length": model.context_length,
        **({} if start == tokenizer.end_of_text else {"bad_words_ids": [[start]]}),
    }  # fmt: skip
