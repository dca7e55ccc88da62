"""The supported families of transformers models, each described once, for export and import."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lm.config.model import ModelConfig
from lm.config.run_config import END_OF_TEXT
from lm.config.settings import list_settings
from lm.errors import UsageError
from lm.tokenizer import Tokenizer

Allowed = Mapping[str, Sequence[Any] | None]
"""Fields of a ModelConfig, each with the values that it may have; None in it is what is derived, None for it anything.

A field that is missing must have its default, or belong to a feature that is off. An imported model has the first.
"""
Neutral = Mapping[str, Sequence[Any]]
"""Keys of a file, each with the only values that are supported."""
Layers = Mapping[str, str]
"""Our layers, or tensors, and theirs: several if they are stored apart; # is the number of a block."""
CAUSAL_LM, MASKED_LM, SEQUENCE_CLASSIFICATION, SEQ2SEQ_LM = (
    "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM",
)  # fmt: skip
"""The auto classes of transformers."""
CODE = Path(__file__).parent / "remote"
"""The code of models without a class in transformers."""


@dataclass(frozen=True)
class Family:
    """A kind of model in transformers.

    Attributes:
        model_type: its name in config.json.
        architecture: the class of the model.
        sizes: what varies: keys of config.json, and our fields.
        options: what varies and may be missing: keys, our fields, and transformers' defaults.
        allowed: what differs from our defaults, and what our model may lack that the family always has, such as biases,
            which are zero.
        layers: the names of tensors; empty if they are ours.
        auto: the class that loads it.
        neutral: keys of config.json whose other values mean another model, with those that they may have.
        layout: how rows of our matrices are stored. transposed: those in blocks inputs first; by head: queries, keys
            and values of a head beside each other, where ours have all queries first; one row: the output bias as a
            matrix.
        prefix: of the names of all tensors but the output layer's, which some files leave out.
        renamed: endings of names that older files have, or of copies, with the current ones.
        unused: endings of buffers that transformers computes, and of heads that the architecture does not have.
        sinusoids: ending of tensors that must hold sinusoidal positions.
        rotary: the keys of base and rotary fraction, and the default fraction.
        window: how a sliding window is configured: always on, or by a switch.
        pre_tokenizer_pattern: the regex by which transformers splits texts after NFC, whatever tokenizer.json says.
    """

    model_type: str
    architecture: str
    sizes: Mapping[str, str]
    options: Mapping[str, tuple[str, Any]]
    allowed: Allowed
    layers: Layers
    auto: str = CAUSAL_LM
    neutral: Neutral = field(default_factory=dict)
    layout: Literal["rows", "transposed", "by head", "one row"] = "rows"
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    sinusoids: str | None = None
    rotary: tuple[str, str, float] | None = None
    window: Literal["always", "switch"] | None = None
    pre_tokenizer_pattern: str | None = None

    @property
    def keys(self) -> dict[str, tuple[str, Any]]:
        """Return the keys of config.json for fields of ours, with their defaults."""
        return {**{key: (name, None) for key, name in self.sizes.items()}, **self.options}

    @property
    def fields(self) -> Allowed:
        """Return what each field of a model may be."""
        carried = {name for name, _ in self.keys.values()} | ({"attention_window"} if self.window else set())
        if self.rotary:
            carried |= {"rope_base", "rope_scaling", "rope_factor", "rope_context", "rope_slow", "rope_fast"}
            carried |= {"rope_temperature", *(["rotary_fraction"] if self.rotary[2] != 1 else [])}
        return {**dict.fromkeys(carried), **self.allowed}

    @property
    def takes_code(self) -> bool:
        """Return whether its models are exported with their code."""
        return not self.layers


def stack(ours: str, theirs: str, layers: Layers) -> dict[str, str]:
    """Return the layers of the blocks of a stack, with the beginnings of their names."""
    return {
        f"{ours}.blocks.#.{layer}": " ".join(theirs + name for name in names.split()) for layer, names in layers.items()
    }


_GPT2: Allowed = {
    "norm": ("layernorm",), "positions": ("learned",), "activation": ("gelu", "gelu-tanh", "relu", "relu2", "silu"),
    "bias": (True, False), "attention_bias": ("all", "none", "inputs"),
}  # fmt: skip
_QWEN: Allowed = {"attention": ("full", "window")}
_BERT: Allowed = {
    **_GPT2, "objective": ("masked",), "norm_position": ("post",), "embedding_norm": (True,),
    "output_bias": (False, True),
}  # fmt: skip

_SIZES = {
    "vocab_size": "vocab_size", "max_position_embeddings": "context_length", "hidden_size": "d_model",
    "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "intermediate_size": "d_ff",
}  # fmt: skip

GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    sizes={
        "vocab_size": "vocab_size", "n_positions": "context_length", "n_embd": "d_model", "n_layer": "n_layers",
        "n_head": "n_heads",
    },
    options={
        "n_inner": ("d_ff", None), "activation_function": ("activation", "gelu_new"),
        "layer_norm_epsilon": ("norm_eps", 1e-5), "tie_word_embeddings": ("tie_embeddings", True),
        "embd_pdrop": ("dropout", 0.1), "resid_pdrop": ("dropout", 0.1), "attn_pdrop": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed=_GPT2,
    neutral={
        "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
    },
    layers={
        "embedding.tokens": "transformer.wte", "embedding.positions": "transformer.wpe",
        "decoder.final_norm": "transformer.ln_f", "head": "lm_head",
        **stack("decoder", "transformer.h.#.", {
            "attention_norm": "ln_1", "attention.input": "attn.c_attn", "attention.output": "attn.c_proj",
            "feed_forward_norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
        }),
    },
    layout="transposed",
    prefix="transformer.",
    unused=(".attn.bias", ".attn.masked_bias"),
)  # fmt: skip

GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    sizes=_SIZES,
    options={
        "hidden_act": ("activation", "gelu"), "layer_norm_eps": ("norm_eps", 1e-5),
        "use_parallel_residual": ("parallel_residual", True), "attention_bias": ("attention_bias", True),
        "tie_word_embeddings": ("tie_embeddings", False), "hidden_dropout": ("dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0), "initializer_range": ("init_std", 0.02),
    },
    allowed={**_GPT2, "positions": ("rotary",), "attention_bias": ("all", "none")},
    layers={
        "embedding.tokens": "gpt_neox.embed_in", "decoder.final_norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        **stack("decoder", "gpt_neox.layers.#.", {
            "attention_norm": "input_layernorm", "attention.input": "attention.query_key_value",
            "attention.output": "attention.dense", "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.up": "mlp.dense_h_to_4h", "feed_forward.down": "mlp.dense_4h_to_h",
        }),
    },
    layout="by head",
    prefix="gpt_neox.",
    renamed={"lm_head.weight": "embed_out.weight"},
    unused=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    rotary=("rotary_emb_base", "rotary_pct", 0.25),
)  # fmt: skip

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    sizes=_SIZES,
    options={
        "num_key_value_heads": ("n_kv_heads", None), "head_dim": ("d_head", None), "rms_norm_eps": ("norm_eps", 1e-6),
        "tie_word_embeddings": ("tie_embeddings", False), "attention_dropout": ("attention_dropout", 0.0),
        "initializer_range": ("init_std", 0.02), "attention_bias": ("attention_bias", False),
        "mlp_bias": ("bias", False),
    },
    allowed={},
    neutral={"hidden_act": ("silu", "swish")},
    layers={
        "embedding.tokens": "model.embed_tokens", "decoder.final_norm": "model.norm", "head": "lm_head",
        **stack("decoder", "model.layers.#.", {
            "attention_norm": "input_layernorm",
            "attention.input": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
            "attention.output": "self_attn.o_proj",
            "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.up": "mlp.gate_proj mlp.up_proj", "feed_forward.down": "mlp.down_proj",
        }),
    },
    prefix="model.",
    unused=(".rotary_emb.inv_freq",),
    rotary=("rope_theta", "partial_rotary_factor", 1.0),
)  # fmt: skip
_UNBIASED = {key: option for key, option in LLAMA.options.items() if not key.endswith("_bias")}
_QWEN_OPTIONS = _UNBIASED | {"num_key_value_heads": ("n_kv_heads", 32)}
QWEN2 = dataclasses.replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    options=_QWEN_OPTIONS,
    allowed={**_QWEN, "attention_bias": ("inputs",)},
    window="switch",
    pre_tokenizer_pattern=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
)
QWEN3 = dataclasses.replace(
    LLAMA,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    options=_QWEN_OPTIONS | {"head_dim": ("d_head", 128), "attention_bias": ("attention_bias", False)},
    allowed={**_QWEN, "qk_norm": (True,), "attention_bias": ("all", "none")},
    window="switch",
)
MISTRAL = dataclasses.replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    options=_UNBIASED | {"num_key_value_heads": ("n_kv_heads", 8)},
    allowed={"attention_bias": ("none",), "attention": ("window",)},
    window="always",
)  # fmt: skip

BERT = Family(
    "bert",
    "BertForMaskedLM",
    sizes=_SIZES,
    options={
        "type_vocab_size": ("token_types", 2), "hidden_act": ("activation", "gelu"),
        "layer_norm_eps": ("norm_eps", 1e-12), "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1), "initializer_range": ("init_std", 0.02),
    },
    allowed={**_BERT, "output_transform": (True,)},
    auto=MASKED_LM,
    neutral={
        "is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": (None, "absolute"),
        "tie_word_embeddings": (True,), "problem_type": (None, "single_label_classification"),
    },
    layers={
        "embedding.tokens": "bert.embeddings.word_embeddings",
        "embedding.positions": "bert.embeddings.position_embeddings",
        "embedding.types": "bert.embeddings.token_type_embeddings.weight",
        "embedding.norm": "bert.embeddings.LayerNorm", "output_bias": "cls.predictions.bias",
        "transform.up": "cls.predictions.transform.dense", "transform.norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions.decoder", "classifier.pooler": "bert.pooler.dense", "classifier.labels": "classifier",
        **stack("decoder", "bert.encoder.layer.#.", {
            "attention.input": "attention.self.query attention.self.key attention.self.value",
            "attention.output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
            "feed_forward.up": "intermediate.dense", "feed_forward.down": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        }),
    },
    renamed={
        "LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
        "bert.pooler.dense.weight", "bert.pooler.dense.bias",
    ),
)  # fmt: skip
BERT_CLASSIFIER = dataclasses.replace(
    BERT,
    architecture="BertForSequenceClassification",
    allowed={**_BERT, "tie_embeddings": (True, False), "output_transform": (False, True), "labels": None},
    auto=SEQUENCE_CLASSIFICATION,
    unused=("embeddings.position_ids",),
)

MARIAN = Family(
    "marian",
    "MarianMTModel",
    sizes={
        "vocab_size": "vocab_size", "max_position_embeddings": "context_length", "d_model": "d_model",
        "encoder_layers": "n_encoder_layers", "decoder_layers": "n_layers", "encoder_attention_heads": "n_heads",
        "decoder_attention_heads": "n_heads", "encoder_ffn_dim": "d_ff", "decoder_ffn_dim": "d_ff",
    },
    options={
        "activation_function": ("activation", "gelu"), "scale_embedding": ("scale_embeddings", False),
        "dropout": ("dropout", 0.1), "attention_dropout": ("attention_dropout", 0.0), "init_std": ("init_std", 0.02),
    },
    allowed={
        **_GPT2, "n_encoder_layers": range(1, 1 << 31), "norm_position": ("post",), "positions": ("sinusoidal-half",),
        "output_bias": (True, False),
    },
    layers={
        "embedding.tokens": "model.shared", "output_bias": "final_logits_bias", "head": "lm_head",
        **stack("encoder", "model.encoder.layers.#.", _MARIAN_BLOCK := {
            "attention.input": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
            "attention.output": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm",
            "feed_forward.up": "fc1", "feed_forward.down": "fc2", "feed_forward_norm": "final_layer_norm",
        }),
        **stack("decoder", "model.decoder.layers.#.", _MARIAN_BLOCK | {
            "cross_attention.input": "encoder_attn.q_proj encoder_attn.k_proj encoder_attn.v_proj",
            "cross_attention.output": "encoder_attn.out_proj", "cross_attention_norm": "encoder_attn_layer_norm",
        }),
    },
    auto=SEQ2SEQ_LM,
    neutral={
        "is_encoder_decoder": (True,), "tie_word_embeddings": (True,), "share_encoder_decoder_embeddings": (True,),
    },
    layout="one row",
    renamed={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    sinusoids="embed_positions.weight",
)  # fmt: skip
"""The encoder-decoder of 2017, as Marian (MarianMT)."""

FAMILIES = (GPT2, GPT_NEOX, QWEN2, LLAMA, MISTRAL, QWEN3, BERT, BERT_CLASSIFIER, MARIAN)
"""In order of preference."""


_CUSTOM = (
    "objective", "vocab_size", "context_length", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff",
    "attention", "attention_window", "attention_bias", "qk_norm", "value_residual", "key_offset", "positions",
    "max_distance", "rope_base", "rotary_fraction", "rope_factor", "rope_context", "rope_slow", "rope_fast",
    "rope_temperature",
    "norm", "norm_position", "norm_eps", "activation", "bias", "parallel_residual", "embedding_norm",
    "scale_embeddings", "tie_embeddings", "token_types", "output_transform", "output_bias", "softcap", "dropout",
    "attention_dropout", "init_std",
)  # fmt: skip
"""The fields that the code in `remote/` has, by the same keys."""
_CUSTOM_VALUES: Allowed = {
    "attention": ("full", "window"), "norm": ("layernorm", "rmsnorm"), "norm_position": ("pre", "post"),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "relative", "t5", "none"),
    "activation": ("relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"),
}  # fmt: skip
"""What it knows of those that have names as values."""


def _custom(architecture: str, auto: str, allowed: Allowed) -> Family:
    """Return a family with the code in `remote/`."""
    classes = {"AutoConfig": "configuration_lm.LMConfig", auto: f"modeling_lm.{architecture}"}
    return Family(
        "lm",
        architecture,
        sizes={**{name: name for name in _CUSTOM}, "rotary_scaling": "rope_scaling"},
        options={},
        allowed={**_CUSTOM_VALUES, **allowed},
        layers={},
        auto=auto,
        neutral={"auto_map": (classes, None)},
    )


CUSTOM_FAMILIES = (
    _custom("LMForCausalLM", CAUSAL_LM, {"objective": ("causal",)}),
    _custom("LMForMaskedLM", MASKED_LM, {"objective": ("masked",)}),
    _custom("LMForSequenceClassification", SEQUENCE_CLASSIFICATION, {"objective": ("masked",), "labels": None}),
)
"""Models without a class in transformers, in order of preference: they keep our fields and tensor names."""


def find_family(config: ModelConfig, tokenizer: Tokenizer) -> Family:
    """Return the family of a model with its tokenizer: one of transformers, else one with custom code.

    Raises:
        UsageError: there is none; the message names the fields that decide.
    """
    families = [
        family
        for family in (*FAMILIES, *CUSTOM_FAMILIES)
        if _keeps_tokenizer(family, tokenizer) and (family.auto == SEQUENCE_CLASSIFICATION) == bool(config.labels)
    ]
    family = nearest_family(config, families)
    if differing := differing_fields(config, family.fields):
        raise UsageError(f"transformers has no model with {format_fields(differing)}")
    return family


def nearest_family(config: ModelConfig, families: Iterable[Family]) -> Family:
    """Return the first family with fewest differing fields, if possible with as many stacks."""

    def distance(family: Family) -> tuple[bool, int]:
        differing = differing_fields(config, family.fields)
        return "n_encoder_layers" in differing, len(differing)

    return min(families, key=distance)


def differing_fields(config: ModelConfig, allowed: Allowed) -> dict[str, Any]:
    """Return the fields of a model whose values are not allowed; those of training alone may be anything."""
    values = {setting.key: getattr(config, setting.name) for setting in _SETTINGS}
    off = {setting.name for setting in _SETTINGS if not setting.is_on(values)}
    differing = {}
    for field_ in dataclasses.fields(config):
        name, value = field_.name, getattr(config, field_.name)
        accepted = allowed.get(name, (field_.default,))
        if accepted is None or value in accepted or name in off or name in _OF_TRAINING:
            continue
        if isinstance(accepted, tuple) and None in accepted:
            with contextlib.suppress(UsageError):  # None contradicts other fields
                if value == getattr(config.replace(**{name: None}), name):
                    continue
        differing[name] = value
    return differing


_SETTINGS = list_settings("model", ModelConfig)
_OF_TRAINING = ("dropout", "attention_dropout", "init_std", "zero_init")


def format_fields(fields: Mapping[str, Any]) -> str:
    """Return the fields with their values, for messages."""
    return " and ".join(f"{name} {value}" for name, value in fields.items())


def _keeps_tokenizer(family: Family, tokenizer: Tokenizer) -> bool:
    """Return whether transformers keeps a tokenizer unchanged in this family."""
    if family.pre_tokenizer_pattern is None:
        return True
    normalizer, words = tokenizer.description["normalizer"] or {}, tokenizer.description["pre_tokenizer"] or {}
    first: Mapping[str, Any] = next(iter(words.get("pretokenizers", [])), {})
    is_alike = first.get("pattern") == {"Regex": family.pre_tokenizer_pattern} and normalizer.get("type") == "NFC"
    return is_alike and END_OF_TEXT in tokenizer.special_tokens  # which is added where it is missing
