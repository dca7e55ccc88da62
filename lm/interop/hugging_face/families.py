"""The families of models that transformers has and we have too, each as data: its settings, and what tensors are named.

Everything here is read in both directions, by export and by import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lm.interop.hugging_face.window import Windowed

Layout = Literal["rows", "transposed", "by head"]
"""How a family keeps the rows of our matrix.

rows: as they are, in one tensor or in several that follow each other; transposed: inputs first; by head: queries, keys
and values of a head beside each other, where ours have all queries first.
"""


@dataclass(frozen=True)
class Setting:
    """A key of a family's config.json and the field of our ModelConfig that says the same.

    Attributes:
        theirs: the key.
        ours: the field.
        default: what transformers takes where the key is missing.
        values: their values and ours, where they are spelled differently; the first of several for ours is written.
        also: values of ours that only become theirs: what theirs has beyond ours is zero then.
    """

    theirs: str
    ours: str
    default: Any = None
    values: Mapping[Any, Any] | None = None
    also: Mapping[Any, Any] = field(default_factory=dict)

    def written(self, value: Any) -> Any:  # noqa: ANN401 (any setting)
        """Their value for one of ours."""
        if self.values is None:
            return value
        return self.also.get(value, next((theirs for theirs, ours in self.values.items() if ours == value), None))


@dataclass(frozen=True)
class Part:
    """The tensors that a family has for one of our layers, without `.weight` and `.bias`."""

    names: tuple[str, ...]
    layout: Layout = "rows"


@dataclass(frozen=True)
class Rotary:
    """The keys that say how rotary positions turn, but for their scaling, and the share that is turned without one."""

    base: str = "rope_theta"
    share: str = "partial_rotary_factor"
    default_share: float = 1.0


@dataclass(frozen=True)
class Family:
    """A kind of model in transformers.

    Attributes:
        model_type: its name in config.json.
        architecture: the class that continues texts.
        settings: what varies.
        requires: what doesn't, as fields or properties of our ModelConfig with the values that they may have.
        implies: fields of our ModelConfig that follow from the family and from nothing in config.json.
        neutral: keys of config.json whose other values mean another model, with those that they may have.
        prefix: of the names of all tensors but the output layer's, which some files leave out.
        outer: names of what there is once; those of our layers to theirs.
        inner: names of what each block has.
        block: how the names of a block begin, after the prefix.
        head: the names that the output layer has, the first of which is written.
        unused: endings of tensors that files of this family may hold and no model needs.
        has_biases: whether norms and linear layers, but for those of attention where a setting says it, have biases,
            which are zero where ours have none.
        rotary: of families with rotary positions.
        windowed: how it says that attention sees a window.
        words: the expression by which transformers splits texts into words, whatever tokenizer.json says, after NFC.
    """

    model_type: str
    architecture: str
    settings: tuple[Setting, ...]
    requires: Mapping[str, tuple[Any, ...]]
    prefix: str
    outer: Mapping[str, str]
    inner: Mapping[str, Part]
    block: str
    head: tuple[str, ...] = ("lm_head",)
    implies: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    has_biases: bool = False
    rotary: Rotary | None = None
    windowed: Windowed = "never"
    words: str | None = None


_NOWHERE: Mapping[str, tuple[Any, ...]] = {
    "architecture": ("transformer",), "n_encoder_layers": (0,), "decoder_only": (False,), "experts": (0,),
    "value_residual": (False,), "embedding_shortcut": (False,), "softcap": (0,), "scale_embeddings": (False,),
    "norm_position": ("pre",), "objective": ("causal",), "embedding_norm": (False,), "output_transform": (False,),
    "attention": ("full",),
}  # fmt: skip
"""What no family here has otherwise."""
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip
_ALL_OR_NONE = {True: "all", False: "none"}
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    settings=(
        Setting("vocab_size", "vocab_size", 50257),
        Setting("n_positions", "context_length", 1024),
        Setting("n_embd", "d_model", 768),
        Setting("n_layer", "n_layers", 12),
        Setting("n_head", "n_heads", 12),
        Setting("n_inner", "d_ff"),
        Setting("activation_function", "activation", "gelu_new", _ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_eps", 1e-5),
        Setting("tie_word_embeddings", "tie_embeddings", True),
        Setting("embd_pdrop", "dropout", 0.1),
        Setting("resid_pdrop", "dropout", 0.1),
        Setting("attn_pdrop", "attention_dropout", 0.1),
        Setting("initializer_range", "init_std", 0.02),
    ),
    requires={
        **_NOWHERE, "norm": ("layernorm",), "positions": ("learned",), "activation": tuple(_ACTIVATIONS.values()),
        "qk_norm": (False,), "n_kv_heads": (None,), "d_head": (None,), "parallel_residual": (False,),
    },
    implies={"norm": "layernorm", "positions": "learned", "bias": True},
    neutral={
        "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
    },
    prefix="transformer.",
    outer={"embedding.tokens": "wte", "embedding.positions": "wpe", "decoder.final_norm": "ln_f"},
    block="h.{}.",
    inner={
        "attention_norm": Part(("ln_1",)),
        "attention.input": Part(("attn.c_attn",), "transposed"),
        "attention.output": Part(("attn.c_proj",), "transposed"),
        "feed_forward_norm": Part(("ln_2",)),
        "feed_forward.up": Part(("mlp.c_fc",), "transposed"),
        "feed_forward.down": Part(("mlp.c_proj",), "transposed"),
    },
    unused=(".attn.bias", ".attn.masked_bias"),
    has_biases=True,
)  # fmt: skip

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    settings=(
        Setting("vocab_size", "vocab_size", 50432),
        Setting("max_position_embeddings", "context_length", 2048),
        Setting("hidden_size", "d_model", 6144),
        Setting("num_hidden_layers", "n_layers", 44),
        Setting("num_attention_heads", "n_heads", 64),
        Setting("intermediate_size", "d_ff", 24576),
        Setting("hidden_act", "activation", "gelu", _ACTIVATIONS),
        Setting("layer_norm_eps", "norm_eps", 1e-5),
        Setting("use_parallel_residual", "parallel_residual", True),
        Setting("attention_bias", "attention_bias", True, _ALL_OR_NONE),
        Setting("tie_word_embeddings", "tie_embeddings", False),
        Setting("hidden_dropout", "dropout", 0.0),
        Setting("attention_dropout", "attention_dropout", 0.0),
        Setting("initializer_range", "init_std", 0.02),
    ),
    requires={
        **_NOWHERE, "norm": ("layernorm",), "positions": ("rotary",), "activation": tuple(_ACTIVATIONS.values()),
        "qk_norm": (False,), "n_kv_heads": (None,), "d_head": (None,), "attention_bias": ("all", "none"),
    },
    implies={"norm": "layernorm", "positions": "rotary", "bias": True},
    prefix="gpt_neox.",
    outer={"embedding.tokens": "embed_in", "decoder.final_norm": "final_layer_norm"},
    block="layers.{}.",
    inner={
        "attention_norm": Part(("input_layernorm",)),
        "attention.input": Part(("attention.query_key_value",), "by head"),
        "attention.output": Part(("attention.dense",)),
        "feed_forward_norm": Part(("post_attention_layernorm",)),
        "feed_forward.up": Part(("mlp.dense_h_to_4h",)),
        "feed_forward.down": Part(("mlp.dense_4h_to_h",)),
    },
    head=("embed_out", "lm_head"),
    unused=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    has_biases=True,
    rotary=Rotary(base="rotary_emb_base", share="rotary_pct", default_share=0.25),
)  # fmt: skip

_LLAMA_BLOCK = {
    "attention_norm": Part(("input_layernorm",)),
    "attention.input": Part(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "attention.output": Part(("self_attn.o_proj",)),
    "feed_forward_norm": Part(("post_attention_layernorm",)),
    "feed_forward.up": Part(("mlp.gate_proj", "mlp.up_proj")),
    "feed_forward.down": Part(("mlp.down_proj",)),
}
_QK_NORMS = {"attention.query_norm": Part(("self_attn.q_norm",)), "attention.key_norm": Part(("self_attn.k_norm",))}
_ANY_WINDOW = {"attention": ("full", "window")}


def _like_llama(
    model_type: str,
    architecture: str,
    *,
    sizes: Mapping[str, Any],
    settings: tuple[Setting, ...] = (),
    requires: Mapping[str, tuple[Any, ...]],
    implies: Mapping[str, Any] | None = None,
    windowed: Windowed = "never",
    words: str | None = None,
) -> Family:
    """A family with Llama's names: RMSNorm, SwiGLU, rotary positions; `sizes` are its defaults of what all have."""
    return Family(
        model_type=model_type,
        architecture=architecture,
        settings=(
            Setting("vocab_size", "vocab_size", sizes["vocab_size"]),
            Setting("max_position_embeddings", "context_length", sizes["context_length"]),
            Setting("hidden_size", "d_model", 4096),
            Setting("num_hidden_layers", "n_layers", 32),
            Setting("num_attention_heads", "n_heads", 32),
            Setting("num_key_value_heads", "n_kv_heads", sizes["n_kv_heads"]),
            Setting("head_dim", "d_head", sizes.get("d_head")),
            Setting("intermediate_size", "d_ff", sizes["d_ff"]),
            Setting("rms_norm_eps", "norm_eps", 1e-6),
            Setting("tie_word_embeddings", "tie_embeddings", False),
            Setting("attention_dropout", "attention_dropout", 0.0),
            Setting("initializer_range", "init_std", 0.02),
            *settings,
        ),
        requires={
            **_NOWHERE, "norm": ("rmsnorm",), "positions": ("rotary",), "activation": ("swiglu",),
            "rotary_share": (1.0,), "parallel_residual": (False,), **requires,
        },
        implies={"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", **(implies or {})},
        neutral={"hidden_act": ("silu", "swish")},
        prefix="model.",
        outer={"embedding.tokens": "embed_tokens", "decoder.final_norm": "norm"},
        block="layers.{}.",
        inner=_LLAMA_BLOCK | _QK_NORMS,
        unused=(".rotary_emb.inv_freq",),
        rotary=Rotary(),
        windowed=windowed,
        words=words,
    )  # fmt: skip


LLAMA = _like_llama(
    "llama",
    "LlamaForCausalLM",
    sizes={"vocab_size": 32000, "context_length": 2048, "n_kv_heads": None, "d_ff": 11008},
    settings=(
        Setting("attention_bias", "attention_bias", False, _ALL_OR_NONE, also={"inputs": True}),
        Setting("mlp_bias", "bias", False),
    ),
    requires={"qk_norm": (False,)},
)
QWEN2 = _like_llama(
    "qwen2",
    "Qwen2ForCausalLM",
    sizes={"vocab_size": 151_936, "context_length": 32_768, "n_kv_heads": 32, "d_ff": 22_016},
    requires={"qk_norm": (False,), "attention_bias": ("inputs",), "bias": (False,), **_ANY_WINDOW},
    implies={"attention_bias": "inputs"},
    windowed="by switch",
    words=_QWEN2_WORDS,
)
QWEN3 = _like_llama(
    "qwen3",
    "Qwen3ForCausalLM",
    sizes={"vocab_size": 151_936, "context_length": 32_768, "n_kv_heads": 32, "d_ff": 22_016, "d_head": 128},
    settings=(Setting("attention_bias", "attention_bias", False, _ALL_OR_NONE),),
    requires={"qk_norm": (True,), "attention_bias": ("all", "none"), "bias": (False,), **_ANY_WINDOW},
    implies={"qk_norm": True},
    windowed="by switch",
)
MISTRAL = _like_llama(
    "mistral",
    "MistralForCausalLM",
    sizes={"vocab_size": 32000, "context_length": 131_072, "n_kv_heads": 8, "d_ff": 14_336},
    requires={"qk_norm": (False,), "attention_bias": ("none",), "bias": (False,), "attention": ("window",)},
    windowed="by width",
)

FAMILIES = (GPT2, GPT_NEOX, QWEN2, LLAMA, MISTRAL, QWEN3)
"""The first that fits a model is the one that it is exported as."""
