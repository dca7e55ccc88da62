"""Export a run as a GGUF file, tokenizer included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.inference import ExportConfig, ExportDtype
from lm.config.model import ModelConfig
from lm.errors import missing_packages
from lm.interop.gguf.architectures import GPT_NEOX_NAME, LLAMA_NAME, build_metadata, find_architecture
from lm.interop.gguf.vocabulary import build_vocabulary
from lm.interop.hugging_face.families import Family
from lm.interop.hugging_face.tensors import to_family_tensors
from lm.model.positions import rotary_frequencies, unscaled_rotary_frequencies

_FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7}
"""GGUF codes of the dtype of most tensors."""
_QUANTIZATION_VERSION = 2


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, as a GGUF file, atomically.

    Matrices have the dtype of the config: float32, float16 or q8_0 (8 bits with a scale per 32 weights; float16 if 32
    does not divide the width). Vectors and learned positions are float32.
    """
    folder = run_folder.find_checkpoint(run)
    model = run_folder.load_config(folder).model
    architecture = find_architecture(model)
    vocabulary = build_vocabulary(checkpoint.load_tokenizers(folder)[0], model.vocab_size)
    try:
        import gguf  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("export to GGUF", "gguf") from None
    about = {"general.type": "model", "general.name": out.stem, "general.file_type": _FILE_TYPES[config.type]}
    about |= {"general.quantization_version": _QUANTIZATION_VERSION} if config.type == "q8_0" else {}
    with files.atomic_new(out) as fresh:
        writer: Any = gguf.GGUFWriter(fresh, architecture.architecture)
        for key, value in {**about, **build_metadata(model, architecture), **vocabulary}.items():
            types = gguf.GGUFValueType
            writer.add_key_value(key, value, types.UINT32 if type(value) is int else types.get_type(value))
        for name, tensor in name_tensors(checkpoint.load_weights(folder), model, architecture, gguf):
            kind = _choose_type(name, tensor, config.type, gguf)
            writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), kind), raw_dtype=kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
    return {
        "model": f"{architecture.architecture} of llama.cpp, {config.type}",
        "tokens": f"pre-tokenised as by {vocabulary['tokenizer.ggml.pre']}",
    }


def _choose_type(name: str, value: Tensor, dtype: ExportDtype, package: Any) -> Any:
    """Return GGUF's type of a tensor."""
    types = package.GGMLQuantizationType
    if dtype == "float32" or value.ndim == 1 or name.startswith("position_embd"):
        return types.F32
    is_whole = value.shape[-1] % package.GGML_QUANT_SIZES[types.Q8_0][0] == 0
    return types.Q8_0 if dtype == "q8_0" and is_whole else types.F16


def name_tensors(
    weights: Mapping[str, Tensor], config: ModelConfig, architecture: Family, package: Any
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a model by their GGUF names.

    Llama's query and key rows are interleaved, as in Llama itself, instead of half a head apart, as in ours and
    transformers. GPT-NeoX has an output layer even if ours is tied.
    """
    known = next(key for key, name in package.MODEL_ARCH_NAMES.items() if name == architecture.architecture)
    names = package.get_tensor_name_map(known, config.n_layers)
    for theirs, value in to_family_tensors(weights, config, architecture):
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        is_paired = architecture.architecture == LLAMA_NAME and any(part in name for part in (".attn_q.", ".attn_k."))
        # (heads·halves·pairs, …) -> (heads·pairs·halves, …)
        halves = value.unflatten(0, (-1, 2, config.d_head // 2)) if is_paired else value
        yield name, halves.transpose(1, 2).flatten(0, 2) if is_paired else value
        if config.tie_embeddings and architecture.architecture == GPT_NEOX_NAME and name == "token_embd.weight":
            yield "output.weight", value
    if config.rope_scaling == "llama3":
        yield "rope_freqs.weight", (unscaled_rotary_frequencies(config) / rotary_frequencies(config)).float()
