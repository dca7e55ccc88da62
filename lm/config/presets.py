"""Presets: default values of settings by name, and the configuration built from a preset and given settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lm.config.model import OF_BLOCKS
from lm.config.run_config import SECTIONS, RunConfig
from lm.config.settings import Layer, Values, build_config, merge, overlay
from lm.errors import UsageError

_CHARACTERS = 65
"""Vocabulary of a preset for characters: those of tinyshakespeare."""


class Preset(NamedTuple):
    """A summary for `lm info`, and the values that differ from the defaults, by section."""

    summary: str
    values: Values


def _preset(summary: str, **values: Any) -> Preset:
    """Return a preset of values by keyword."""
    by_section, _ = merge(SECTIONS, [Layer("python", values)])
    by_section["model"]["vocab_size"] = values.get("vocab_size", _CHARACTERS)
    return Preset(summary, by_section)


def muon_learning_rate(d_model: int, *, translates: bool = False) -> float:
    """Return the peak learning rate of Muon, which falls with the square root of the width.

    Muon keeps the RMS of the update of a matrix, so that its outputs change by as much at any width.
    """
    return round(6e-3 * (192 / d_model) ** 0.5 if translates else 0.02 * (128 / d_model) ** 0.5, 5)


def adamw_learning_rate(d_model: int) -> float:
    """Return the peak learning rate of AdamW, which falls with the width (Yang et al. 2022)."""
    return 3e-3 * 128 / d_model


_RECIPE = {
    "positions": "rotary", "norm": "layernorm", "qk_norm": True, "activation": "gelu", "zero_init": True,
    "value_residual": True, "key_offset": True,
}  # fmt: skip
_PORTABLE_RECIPE = {
    "positions": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "swiglu", "zero_init": True,
    "tie_embeddings": False,
}  # fmt: skip
"""The recipe with the blocks of Qwen3 (2025), which other tools support.

The output layer is its own, as in nanochat (Karpathy 2025), so that it starts at zero: the first prediction is uniform.
A tied one predicts the token that it reads, as blocks that start at zero leave its embedding unchanged
(docs/lab/recipe.md).
"""
_PORTABLE_RATE = 0.5
"""Of the recipe's learning rate, the best of 0.35, 0.5, 0.7, 1 and 1.4 for them (docs/lab/recipe.md)."""
_DECAY = {"schedule": "linear", "decay_fraction": 0.5, "final_learning_rate_fraction": 0.0}
_SEQ2SEQ = {
    **_DECAY, "vocab_size": 4000, "context": 256, "scale_embeddings": True, "warmup_steps": 200, "beta2": 0.98,
    "label_smoothing": 0.1, "ema": 0.998, "best_by": "bleu",
}  # fmt: skip
_RECURRENT = {**_SEQ2SEQ, "n_layers": 1, "n_encoder_layers": 1, "dropout": 0.2}


def _decoder(summary: str, width: int, **values: Any) -> Preset:
    """Return a decoder trained by the recipe (docs/lab/recipe.md)."""
    rate = muon_learning_rate(width)
    recipe = {**_RECIPE, **_DECAY, "optimizer": "muon", "beta2": 0.99, "warmup_steps": 10,
              "learning_rate": rate, "d_model": width}  # fmt: skip
    return _preset(summary, **recipe, **values)


def _translator(summary: str, layers: int, width: int, **values: Any) -> Preset:
    blocks = {
        "d_model": width, "n_layers": layers, "n_encoder_layers": layers, "n_heads": 4, "d_ff": 512,
        "positions": "rotary", "norm": "layernorm", "activation": "relu", "bias": True, "attention_dropout": 0.0,
        "optimizer": "muon",
    }  # fmt: skip
    return _preset(summary, **{**_SEQ2SEQ, **blocks, **values})


_GPT2 = {
    "vocab_size": 50257, "context": 1024, "d_model": 768, "n_layers": 12, "n_heads": 12, "positions": "learned",
    "norm": "layernorm", "activation": "gelu-tanh", "bias": True, "dropout": 0.1, "init_std": 0.02,
}  # fmt: skip
_BERT = {
    **_GPT2, "vocab_size": 30522, "context": 512, "objective": "masked", "norm_position": "post", "norm_eps": 1e-12,
    "activation": "gelu", "embedding_norm": True, "output_transform": True,
}  # fmt: skip
"""Without token types, as there is no next-sentence prediction."""
_NANOGPT = {
    "kind": "char", "positions": "learned", "norm": "layernorm", "activation": "gelu", "beta2": 0.99,
    "warmup_steps": 100, "learning_rate": 1e-3, "validation": "0.1",
}  # fmt: skip
_TRANSFORMER = {
    "vocab_size": 37000, "context": 512, "d_model": 512, "n_layers": 6, "n_encoder_layers": 6, "n_heads": 8,
    "d_ff": 2048, "positions": "sinusoidal", "norm": "layernorm", "norm_position": "post", "activation": "relu",
    "bias": True, "dropout": 0.1, "scale_embeddings": True, "batch_tokens": 25_000, "steps": 100_000,
    "schedule": "inverse-sqrt", "learning_rate": 7e-4, "warmup_steps": 4000, "beta2": 0.98, "epsilon": 1e-9,
    "weight_decay": 0.0, "clip": 0.0, "label_smoothing": 0.1,
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    "tiny": _decoder(
        "0.9 M parameters: a first model of a small text, minutes on a laptop",
        128, vocab_size=1024, context=128, n_layers=4, n_heads=4, batch_size=16, steps=1000, evaluate_every=100,
    ),
    "small": _decoder(
        "12 M parameters: tens of megabytes of text, hours on a laptop or minutes on a GPU",
        384, vocab_size=4096, context=256, n_layers=6, n_heads=6, batch_size=64, steps=5000,
    ),
    "base": _decoder(
        "98 M parameters: gigabytes of text, a GPU",
        768, vocab_size=16384, context=1024, n_layers=12, n_heads=12, batch_size=256, micro_batch_size=16,
        steps=20_000, evaluate_every=1000,
    ),
    "translation": _translator(
        "3 M parameters: translation from tens of thousands of pairs of sentences, an hour on a laptop",
        4, 160, dropout=0.2, bpe_dropout=0.1, bpe_dropout_until=0.8, batch_tokens=3072, epochs=30.0,
        learning_rate=6e-3, evaluate_every=1000,
    ),
    "translation-tiny": _translator(
        "1.4 M parameters: a first translation model from pairs that follow rules, minutes on a laptop",
        2, 128, dropout=0.1, batch_tokens=2048, epochs=12.0, learning_rate=1e-2, evaluate_every=400,
        bleu_sentences=500, label_smoothing=0.0,
    ),
    "seq2seq": _preset(
        "recurrent, of the width of Bahdanau et al. 2015 (GRU, additive attention), which both directions share",
        **{**_RECURRENT, "vocab_size": 30_000}, architecture="gru", d_model=1000, batch_tokens=4096, steps=100_000,
        learning_rate=5e-4,
    ),
    "seq2seq-tiny": _preset(
        "1.5 M parameters: a first recurrent translation model (LSTM, additive attention), minutes on a laptop",
        **_RECURRENT, architecture="lstm", d_model=192, batch_tokens=2048, epochs=12.0, learning_rate=4e-3,
        evaluate_every=400, bleu_sentences=500,
    ),
    # published ones
    "nanogpt-cpu": _preset(
        "nanoGPT's recipe for a laptop: characters, context 64",
        **_NANOGPT, d_model=128, n_layers=4, n_heads=4, context=64, batch_size=12, steps=2000,
    ),
    "nanogpt": _preset(
        "nanoGPT's recipe for a GPU: characters, context 256",
        **_NANOGPT, d_model=384, n_layers=6, n_heads=6, context=256, dropout=0.2, batch_size=64, steps=5000,
    ),
    "gpt1": _preset(
        "GPT (Radford et al. 2018)",
        **{**_GPT2, "vocab_size": 40478, "context": 512}, norm_position="post", batch_size=64, micro_batch_size=16,
        epochs=100.0, learning_rate=2.5e-4, warmup_steps=2000, weight_decay=0.01,
    ),
    "gpt2": _preset(
        "GPT-2 (Radford et al. 2019)",
        **_GPT2, batch_size=480, micro_batch_size=16, steps=600_000, learning_rate=6e-4, warmup_steps=2000,
    ),
    "llama-15m": _preset(
        "Llama's block at the size of llama2.c's stories15M",
        vocab_size=32000, context=256, d_model=288, n_layers=6, n_heads=6, d_ff=768, batch_size=128, steps=100_000,
        learning_rate=5e-4, warmup_steps=1000,
    ),
    "transformer-base": _preset("the encoder-decoder of Vaswani et al. 2017", **_TRANSFORMER),
    "t-dmca": _preset(
        "the decoder of Liu et al. 2018 for long texts: alternating local and memory-compressed attention",
        **{**_TRANSFORMER, "vocab_size": 32_000, "context": 11_000, "n_layers": 5, "n_encoder_layers": 0},
        attention="compressed",
    ),
    "switch-base": _preset(
        "Switch Transformer base of 8 experts (Fedus et al. 2021), T5's encoder-decoder (Raffel et al. 2020)",
        **{
            **_TRANSFORMER, "vocab_size": 32128, "d_model": 768, "n_layers": 12, "n_encoder_layers": 12, "n_heads": 12,
            "d_ff": 3072, "positions": "t5", "norm": "rmsnorm", "norm_position": "pre", "bias": False,
            "scale_embeddings": False, "clip": 1.0, "label_smoothing": 0.0,
        },
        norm_eps=1e-6, experts=8, expert_every=2, expert_capacity=1.25,
    ),
    "bert-base": _preset(
        "BERT base (Devlin et al. 2019), a masked model",
        **_BERT, batch_size=256, micro_batch_size=32, steps=1_000_000, learning_rate=1e-4, schedule="linear",
        warmup_steps=10_000, final_learning_rate_fraction=0.0, beta2=0.999, epsilon=1e-6, weight_decay=0.01,
    ),
}  # fmt: skip
DEFAULT_PRESET, DEFAULT_TRANSLATION_PRESET = "tiny", "translation"
_SIZES = ("tiny", "small", "base")
_OF_DEPTH = re.compile(r"(translation-)?depth-([1-9][0-9]?)")
PORTABLE = "portable-"


def depth_preset_name(depth: int, *, pairs: bool) -> str:
    """Return the preset of a depth: an encoder-decoder for sentence pairs, else a decoder."""
    return f"{'translation-' if pairs else ''}depth-{depth}"


def preset_depth(name: str | None) -> int | None:
    """Return the depth in a preset's name; None for other presets."""
    match = _OF_DEPTH.fullmatch((name or "").removeprefix(PORTABLE))
    return None if match is None else int(match[2])


def has_training_recipe(name: str) -> bool:
    """Return whether a preset also sets the training: published ones, and those for sentence pairs."""
    return preset_depth(name) is None and name.removeprefix(PORTABLE) not in _SIZES


def portable_name(name: str) -> str:
    """Return the name of the portable form of a preset: same shape and training, with common blocks."""
    return PORTABLE + name.removeprefix(PORTABLE)


def find_preset(name: str) -> Preset:
    """Return a preset by name, also depth-N, translation-depth-N and portable-NAME.

    Raises:
        UsageError: there is none.
    """
    if name.startswith(PORTABLE):
        return _make_portable(name.removeprefix(PORTABLE))
    if match := _OF_DEPTH.fullmatch(name):
        return (build_translation_depth_preset if match[1] else build_depth_preset)(int(match[2]))
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r} (`lm info` lists them), nor a folder")
    return PRESETS[name]


def build_depth_preset(depth: int) -> Preset:
    """Return a decoder of a depth: d_model 64 times the depth, a head per layer, 20 tokens/parameter.

    Source: the single dial, nanochat (Karpathy 2025); the length, Hoffmann et al. 2022.
    """
    width, vocabulary = 64 * depth, 1024 if depth < 4 else 4096
    parameters = 12 * depth * width**2 + vocabulary * width
    return _decoder(
        f"{depth} layers, {width} wide",
        width, vocab_size=vocabulary, context=128 if depth < 4 else 256 if depth < 8 else 1024, n_layers=depth,
        n_heads=depth, batch_tokens=2**11 * depth, tokens=20 * parameters,
    )  # fmt: skip


def build_translation_depth_preset(depth: int) -> Preset:
    """Return an encoder-decoder with `depth` layers in each stack and d_model 64 × `depth`.

    It is trained for ten epochs, which suits tens of thousands of pairs.
    """
    width = 64 * depth
    return _translator(
        f"{depth} layers on each side, {width} wide",
        depth, width, dropout=0.1, n_heads=max(4, depth), d_ff=4 * width, batch_tokens=3072, epochs=10.0,
        learning_rate=muon_learning_rate(width, translates=True), evaluate_every=500, bleu_sentences=500,
    )  # fmt: skip


def _make_portable(name: str) -> Preset:
    """Replace the blocks of a recipe preset; UsageError if it has other blocks."""
    values = find_preset(name).values
    model, training = values["model"], values["training"]
    if not _RECIPE.items() <= model.items():
        raise UsageError(f"portable: is for texts and the presets tiny, small, base and depth-N, not for {name}")
    shape = {key: value for key, value in model.items() if key not in _RECIPE}
    rate = round(_PORTABLE_RATE * training["learning_rate"], 5)
    return Preset(
        f"{name} with the blocks of Qwen3, and an output layer of its own",
        {**values, "model": {**shape, **_PORTABLE_RECIPE}, "training": {**training, "learning_rate": rate}},
    )


def build_run_config(name: str, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> RunConfig:
    """Build the configuration of a preset with some fields given.

    Args:
        overrides: section ("model", "training", …) to given fields, which replace the preset's. A budget implies its
            schedule, a recurrent architecture drops settings of blocks, adapters have their own optimizer, an optimizer
            that is not the preset's its own rate, and a decoder-only translation model the layers of both stacks.
    """
    values = {section: dict(fields) for section, fields in find_preset(name).values.items()}
    model, training = values["model"], values["training"]
    given = {section: (overrides or {}).get(section, {}) for section in SECTIONS}
    has_muon = training.get("optimizer") == "muon"
    if given["model"].get("architecture", "transformer") != "transformer":
        values["model"] = {name: value for name, value in model.items() if name not in OF_BLOCKS}
        if has_muon:  # after 300 steps of copying reversed digits (LSTM, 96 wide) its loss was 0.5, AdamW's 0.01
            del training["optimizer"], training["learning_rate"]
    elif given["lora"].get("rank") is not None and has_muon and "optimizer" not in given["training"]:
        # AdamW at half the rate was never worse, and better after few steps and in a wider model (docs/lab/quality.md)
        training |= {"optimizer": "adamw", "learning_rate": training["learning_rate"] / 2}
    elif (optimizer := given["training"].get("optimizer")) not in (None, training.get("optimizer", "adamw")):
        width, translates = given["model"].get("d_model", model["d_model"]), "n_encoder_layers" in model
        rate = muon_learning_rate(width, translates=translates) if optimizer == "muon" else adamw_learning_rate(width)
        training["learning_rate"] = rate
    if given["model"].get("decoder_only"):
        model["n_layers"] += model.pop("n_encoder_layers", 0)
    if given["training"].get("budget") is not None:
        training["schedule"] = "wsd"
    sections: dict[str, Any] = {
        section: build_config(kind, overlay(values[section], given[section])) for section, kind in SECTIONS.items()
    }
    return RunConfig(preset=name, **sections)
