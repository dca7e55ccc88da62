"""Export a run as a GGUF file, tokenizer included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.export import ExportConfig, ExportDtype
from lm.config.model import ModelConfig
from lm.errors import missing_packages
from lm.interop.gguf.architectures import GPT_NEOX_NAME, LLAMA_NAME, build_metadata, find_architecture
from lm.interop.gguf.vocabulary import GGUFVocabulary, build_vocabulary
from lm.interop.hugging_face.configuration import explain_family
from lm.interop.hugging_face.family_schema import Family
from lm.interop.hugging_face.tensors import to_family_tensors
from lm.model.positions import rotary_frequencies, unscaled_rotary_frequencies

_FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7}
"""GGUF codes of the dtype of most tensors."""
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class ExportedGGUF:
    """What a run was exported as: architecture, what decided that, and vocabulary."""

    architecture: Family
    decided_by: str
    vocabulary: GGUFVocabulary


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run to a file and return what to report; see `EXPORTERS`."""
    exported = export_gguf(run, out, number_type=config.type)
    pre_tokenizer, left_out = exported.vocabulary.pre_tokenizer, exported.vocabulary.left_out
    return {
        "model": f"{exported.architecture.architecture} of llama.cpp, {config.type}: {exported.decided_by}",
        "tokens": f"pre-tokenised as by {pre_tokenizer}" + (f"; {left_out}" if left_out else ""),
    }


def export_gguf(run: Path, path: Path, *, number_type: ExportDtype = "float32") -> ExportedGGUF:
    """Export a run's best checkpoint, or a checkpoint, as a GGUF file, atomically.

    Args:
        number_type: dtype of the matrices: float32, float16 or q8_0 (8 bits with a scale per 32 weights; float16 if 32
            does not divide the width). Vectors and learned positions are float32.

    Raises:
        InputError: the run is damaged, the file exists, or the package `gguf` is not installed.
        UsageError: llama.cpp has no such model or tokenizer.
    """
    package = _import_gguf()
    folder = run_folder.find_checkpoint(run)
    config = run_folder.load_config(folder).model
    architecture = find_architecture(config)
    vocabulary = build_vocabulary(checkpoint.load_tokenizers(folder)[0], config.vocab_size)
    with files.atomic_new_file(path) as fresh:
        writer = package.GGUFWriter(fresh, architecture.model_type)
        about = {"general.type": "model", "general.name": path.stem, "general.file_type": _FILE_TYPES[number_type]}
        if number_type == "q8_0":
            about["general.quantization_version"] = _QUANTIZATION_VERSION
        for key, value in {**about, **build_metadata(config, architecture), **vocabulary.settings}.items():
            _add_metadata(writer, key, value)
        for name, tensor in name_tensors(checkpoint.load_weights(folder), config, architecture):
            is_exact = name == _weight_name(architecture.outer.get("embedding.positions"))
            numbers, kind = _encode_tensor(tensor, "float32" if is_exact else number_type, package)
            writer.add_tensor(name, numbers, raw_dtype=kind)
        _write(writer)
    return ExportedGGUF(architecture, explain_family(config, architecture), vocabulary)


def _import_gguf() -> Any:
    try:
        import gguf  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("export to GGUF", "gguf") from None
    return gguf


def _add_metadata(writer: Any, key: str, value: Any) -> None:
    """Add a value with the GGUF type for its Python type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _encode_tensor(value: Tensor, number_type: ExportDtype, package: Any) -> tuple[NDArray[Any], Any]:
    """Return a tensor in a dtype, with GGUF's code of the dtype."""
    numbers, kinds = value.float().numpy(), package.GGMLQuantizationType
    if number_type == "float32" or numbers.ndim == 1:
        return numbers, kinds.F32
    if number_type == "q8_0" and numbers.shape[-1] % package.GGML_QUANT_SIZES[kinds.Q8_0][0] == 0:
        return package.quants.quantize(numbers, kinds.Q8_0), kinds.Q8_0
    return numbers.astype(np.float16), kinds.F16


def _write(writer: Any) -> None:
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


_FACTORS = "rope_freqs.weight"


def name_tensors(
    weights: Mapping[str, Tensor], config: ModelConfig, architecture: Family
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a model by their GGUF names.

    Llama's query and key rows are interleaved, as in Llama itself, instead of half a head apart, as in ours and
    transformers. GPT-NeoX has an output layer even if ours is tied.
    """
    paired = architecture.inner["attention.input"].names[:2] if architecture.model_type == LLAMA_NAME else ()
    needs_output = config.tie_embeddings and architecture.model_type == GPT_NEOX_NAME
    for name, value in to_family_tensors(weights, config, architecture):
        yield (
            name,
            _interleave_rotary_pairs(value, config.d_head) if any(f".{part}." in name for part in paired) else value,
        )
        if needs_output and name == _weight_name(architecture.outer["embedding.tokens"]):
            yield _weight_name(architecture.head[0]), value
    if config.rope_scaling == "llama3":
        yield _FACTORS, (unscaled_rotary_frequencies(config) / rotary_frequencies(config)).float()


def _weight_name(layer: str | None) -> str:
    return f"{layer}.weight"


def _interleave_rotary_pairs(value: Tensor, head_size: int) -> Tensor:
    """Interleave the two halves of each head's rows: (heads·head, …) -> the same shape."""
    return value.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)
