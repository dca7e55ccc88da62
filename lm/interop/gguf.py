"""Export a run as a GGUF file for llama.cpp, tokenizer included.

The architectures are families of transformers with fewer fields and other names. Tokenizers are byte-level BPE with a
pre-tokenizer of llama.cpp, or SentencePiece BPE (such as Llama 2's), which has scores instead of merge rules
there: llama.cpp merges neighbouring pieces into the best-scored piece, whichever pair spells it. Merge rules are
equivalent if they have every such pair, and all pairs of one piece before any of the next, as rules derived from scores
do.

Source: the GGUF specification, and src/models of llama.cpp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.inference import ExportConfig, ExportDtype
from lm.config.model import ModelConfig
from lm.errors import UsageError, missing_packages
from lm.interop.conversion import to_family_tensors
from lm.interop.families import (
    GPT2,
    GPT_NEOX,
    LLAMA,
    QWEN2,
    QWEN3,
    Allowed,
    Family,
    differing_fields,
    format_fields,
    nearest_family,
)
from lm.model.positions import rotary_frequencies, unscaled_rotary_frequencies
from lm.text import Part
from lm.tokenizer import MergeRules, Tokenizer, decode_byte_fallback

_GELU: dict[str, tuple[Any, ...]] = {"activation": ("gelu-tanh", "gelu")}
"""llama.cpp computes both with tanh, also for published models with the exact GELU."""
_NO_WINDOW: dict[str, tuple[Any, ...]] = {"attention": ("full",)}
_NO_LLAMA3_SCALING: dict[str, tuple[Any, ...]] = {"rope_scaling": ("none", "linear", "yarn")}
LLAMA_NAME, GPT_NEOX_NAME = "llama", "gptneox"
_YARN = {"rope_fast": 32.0, "rope_slow": 1.0}
"""YaRN's beta_fast and beta_slow, which these architectures fix."""


def _architecture(name: str, family: Family, allowed: Allowed) -> Family:
    """Derive a family whose matrices are stored as llama.cpp has them; `gguf` knows the names of its tensors."""
    return dataclasses.replace(
        family,
        options={
            key: option for key, option in family.options.items() if (key, name) != ("attention_bias", GPT_NEOX_NAME)
        },
        architecture=name,
        allowed={**family.allowed, **allowed},
        layout="rows",
    )


ARCHITECTURES = (
    _architecture("gpt2", GPT2, _GELU),
    _architecture(GPT_NEOX_NAME, GPT_NEOX, _GELU | _NO_LLAMA3_SCALING),
    _architecture("qwen2", QWEN2, _NO_WINDOW | _NO_LLAMA3_SCALING | {"d_head": (None,)}),
    _architecture(LLAMA_NAME, LLAMA, _NO_WINDOW),
    _architecture("qwen3", QWEN3, _NO_WINDOW | _NO_LLAMA3_SCALING | {"attention_bias": ("none",)}),
)
"""In order of preference."""


def find_architecture(config: ModelConfig) -> Family:
    """Return the architecture of a model.

    Raises:
        UsageError: llama.cpp has none; the message names the fields that differ from the nearest.
    """
    architecture = nearest_family(config, ARCHITECTURES)
    differing = differing_fields(config, architecture.fields)
    if config.rope_scaling == "yarn":
        differing |= {name: getattr(config, name) for name, fixed in _YARN.items() if getattr(config, name) != fixed}
    if differing:
        raise UsageError(f"llama.cpp has no model with {format_fields(differing)}")
    return architecture


def build_metadata(config: ModelConfig, architecture: Family) -> dict[str, Any]:
    """Return the GGUF metadata of a model."""
    kind = "layer_norm_rms_epsilon" if config.norm == "rmsnorm" else "layer_norm_epsilon"
    values = {
        "context_length": config.context_length,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.d_head,
        "attention.value_length": config.d_head,
        f"attention.{kind}": float(config.norm_eps),
        "vocab_size": config.vocab_size,
    }
    if architecture.architecture == GPT_NEOX_NAME:
        values["use_parallel_residual"] = config.parallel_residual
    if config.positions == "rotary":
        values |= {
            "rope.dimension_count": config.rotary_dim,
            "rope.freq_base": float(config.rope_base),
        } | _rope_scaling_metadata(config)
    return {f"{architecture.architecture}.{key}": value for key, value in values.items()}


def _rope_scaling_metadata(config: ModelConfig) -> dict[str, Any]:
    """Return the RoPE scaling by name, if it has one; else the factors are a tensor."""
    if config.rope_scaling not in ("linear", "yarn"):
        return {}
    keys: dict[str, Any] = {"rope.scaling.type": config.rope_scaling, "rope.scaling.factor": float(config.rope_factor)}
    if config.rope_scaling == "yarn":
        default_temperature = config.replace(rope_temperature=None).rope_temperature
        keys |= {
            "rope.scaling.original_context_length": config.rope_context,
            "rope.scaling.attn_factor": config.rope_temperature / default_temperature,
        }
    return keys


_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False}


def _split(pattern: str | None) -> list[Mapping[str, Any]]:
    words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [words, {**_BYTES, "use_regex": False}]


_PRE_TOKENIZERS: Mapping[str, list[Mapping[str, Any]]] = {
    "gpt-2": [{**_BYTES, "use_regex": True}],
    "smollm": [{"type": "Digits", "individual_digits": True}, {**_BYTES, "use_regex": True}],
    "qwen2": _split(QWEN2.pre_tokenizer_pattern),
    "llama-bpe": _split(_LLAMA3_WORDS),
}
"""llama.cpp's names of pre-tokenizers, and how `tokenizer.json` describes them, but for offsets."""
_IGNORES_MERGES = "llama-bpe"
"""The pre-tokenizer with which llama.cpp ignores merges for words in the vocabulary."""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""GGUF token types."""


def build_vocabulary(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Return a vocabulary of the given size as GGUF metadata; IDs beyond the tokenizer get unused names.

    Raises:
        UsageError: llama.cpp has no such tokenizer; the message names the reason.
    """
    tokens = [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]
    kinds = _token_kinds(tokenizer, size)
    if is_sentencepiece(tokenizer.description):
        own = build_sentencepiece_metadata(tokenizer, tokens, kinds)
    else:
        pre_tokenizer = _find_pre_tokenizer(tokenizer)
        own = {"model": "gpt2", "pre": pre_tokenizer, "merges": _merges(tokenizer), "token_type": kinds}
    if tokenizer.start_of_text is None or tokenizer.end_of_text is None:
        raise UsageError("llama.cpp needs a token that ends a text, and this tokenizer has none")
    settings = {
        **own,
        "tokens": tokens,
        "bos_token_id": tokenizer.start_of_text,
        "eos_token_id": tokenizer.end_of_text,
        "padding_token_id": tokenizer.end_of_text,
    }
    template, start = tokenizer.chat_template, tokenizer.token(tokenizer.start_of_text) or ""
    # as in training; with a template as in conversations, since llama.cpp has one setting for both
    settings["add_bos_token"] = template is None or template.render([Part("user", "text")]).startswith(start)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in settings.items()}
    if template is not None:
        metadata["tokenizer.chat_template"] = template.source
    if template is not None or len(tokenizer.ends) > 1:
        metadata["tokenizer.ggml.eot_token_id"] = tokenizer.stop_ids[0 if template else 1]
    return metadata


def _merges(tokenizer: Tokenizer) -> list[str]:
    """Return the merge rules; a dummy rule if there are none, as GGUF requires some."""
    if tokenizer.merge_rules:
        return [" ".join(rule) for rule in tokenizer.merge_rules.rules]
    assert tokenizer.end_of_text is not None
    return [" ".join([str(tokenizer.token(tokenizer.end_of_text))] * 2)]


def _token_kinds(tokenizer: Tokenizer, size: int) -> list[int]:
    added = {token["id"]: token["special"] for token in tokenizer.description["added_tokens"]}
    kinds = [_NORMAL if tokenizer.token(index) is not None else _UNUSED for index in range(size)]
    for index, is_special in added.items():
        kinds[index] = _CONTROL if is_special else _USER_DEFINED
    return kinds


def _find_pre_tokenizer(tokenizer: Tokenizer) -> str:
    """Return llama.cpp's name of the pre-tokenizer; UsageError if it has none."""
    description = tokenizer.description
    model, normalizer = description["model"], description["normalizer"] or {}
    splitter = description["pre_tokenizer"] or {}
    parts = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    described = [{key: value for key, value in part.items() if key != "trim_offsets"} for part in parts]
    if not model.get("merges"):  # no token is longer than a byte, however texts are split
        described = [{**described[-1], "use_regex": True}]
    name = next((name for name, known in _PRE_TOKENIZERS.items() if known == described), None)
    refused = {
        f"kind {tokenizer.kind}": model["type"] != "BPE",
        "tokens that do not spell bytes": not tokenizer.is_byte_level,
        f"normalizer {normalizer.get('type')}": normalizer.get("type", "NFC") != "NFC",
        "continuing_subword_prefix": model.get("merges") and tokenizer.merge_rules is None,
        "pre_tokenizer": name is None or model.get("ignore_merges", False) is not (name == _IGNORES_MERGES),
    }
    if problems := [problem for problem, is_there in refused.items() if is_there]:
        raise UsageError(f"llama.cpp has no counterpart of the tokenizer's {problems[0]}")
    return str(name)


_SPACE = "▁"
_REPLACED = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}


def is_sentencepiece(description: Mapping[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` has byte fallback, as SentencePiece's BPE does."""
    model = description["model"]
    return model["type"] == "BPE" and bool(model["byte_fallback"])


def build_sentencepiece_metadata(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return GGUF metadata of such a tokenizer, by key suffix.

    Args:
        tokens: of the vocabulary, by ID.
        kinds: GGUF token types.

    Raises:
        UsageError: llama.cpp would encode differently.
    """
    rules, unknown = tokenizer.merge_rules, tokenizer.description["model"]["unk_token"]
    missing = 256 - sum(decode_byte_fallback(token) is not None for token in tokens)
    if rules is None or missing or unknown not in rules.vocabulary:
        raise UsageError("llama.cpp takes pieces with rules, all bytes and a token for what is unknown, not without")
    special = {rules.vocabulary[unknown]: _UNKNOWN}
    special |= {index: _BYTE for index, token in enumerate(tokens) if decode_byte_fallback(token) is not None}
    return {
        "model": "llama",
        "pre": "default",
        "scores": _compute_scores(rules, len(tokens)),
        "token_type": [special.get(index, kind) for index, kind in enumerate(kinds)],
        "unknown_token_id": rules.vocabulary[unknown],
        "add_space_prefix": _begins_with_space(tokenizer.description),
    }


def _begins_with_space(description: Mapping[str, Any]) -> bool:
    """Return whether a space is prepended; UsageError if spaces become anything but `▁`."""
    normalizer, splitter = description["normalizer"] or {}, description["pre_tokenizer"]
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if splitter is None and parts == [_REPLACED]:
        return False
    if splitter is None and parts == [{"type": "Prepend", "prepend": _SPACE}, _REPLACED]:
        return True
    raise UsageError("llama.cpp has no counterpart of how the tokenizer handles spaces (normalizer, pre_tokenizer)")


def _compute_scores(rules: MergeRules, size: int) -> list[float]:
    """Return scores by the order of merge rules; pieces without a rule have the lowest."""
    order: dict[str, int] = {}
    last, refused = "", []
    for left, right in rules.rules:
        merged = left + right
        refused += [merged] if merged != last and merged in order else []
        order.setdefault(merged, len(order))
        last = merged
    pairs, whole = {(left, right) for left, right in rules.rules}, set(rules.whole)
    for token in [token for token, index in rules.vocabulary.items() if index not in whole]:
        splits = ((token[:index], token[index:]) for index in range(1, len(token)))
        if any(split not in pairs and all(part in rules.vocabulary for part in split) for split in splits):
            refused.append(token)
    if refused:
        raise UsageError(f"llama.cpp merges pieces by scores, and the rules for {refused[0]!r} do not follow any")
    scores = [-float(len(order))] * size
    for token, rank in order.items():
        scores[rules.vocabulary[token]] = -float(rank)
    return scores


_FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32, "q8_0": 7}
"""GGUF codes of the dtype of most tensors."""
_QUANTIZATION_VERSION = 2


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, as a GGUF file, atomically.

    Matrices have the dtype of the config: float32, float16, bfloat16 or q8_0 (8 bits with a scale per 32 weights;
    float16 if 32 does not divide the width). Vectors and learned positions are float32.
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
    return types.Q8_0 if dtype == "q8_0" and is_whole else types.BF16 if dtype == "bfloat16" else types.F16


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
