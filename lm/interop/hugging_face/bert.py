"""BERT for masked language modelling or classification, as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm.config.portable_architectures import ARCHITECTURES
from lm.interop.hugging_face.family_schema import (
    ACTIVATIONS,
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    Family,
    FieldMapping,
    Part,
)

_OUTER = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.positions": "bert.embeddings.position_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
}
_SETTINGS = (
    FieldMapping("vocab_size", "vocab_size", 30522),
    FieldMapping("max_position_embeddings", "context_length", 512),
    FieldMapping("hidden_size", "d_model", 768),
    FieldMapping("num_hidden_layers", "n_layers", 12),
    FieldMapping("num_attention_heads", "n_heads", 12),
    FieldMapping("intermediate_size", "d_ff", 3072),
    FieldMapping("type_vocab_size", "token_types", 2, also={0: 1}),
    FieldMapping("hidden_act", "activation", "gelu", ACTIVATIONS),
    FieldMapping("layer_norm_eps", "norm_eps", 1e-12),
    FieldMapping("hidden_dropout_prob", "dropout", 0.1),
    FieldMapping("attention_probs_dropout_prob", "attention_dropout", 0.1),
    FieldMapping("initializer_range", "init_std", 0.02),
)
_TYPES = {"embedding.types": "bert.embeddings.token_type_embeddings.weight"}


def _bert(
    architecture: str,
    auto: str,
    *,
    implies: Mapping[str, Any],
    outer: Mapping[str, str],
    tensors: Mapping[str, str],
    unused: tuple[str, ...],
) -> Family:
    """Define BERT with one of its heads."""
    return Family(
        model_type="bert",
        architecture=architecture,
        auto=auto,
        settings=_SETTINGS,
        requires=ARCHITECTURES[architecture],
        implies={
            "objective": "masked", "norm": "layernorm", "norm_position": "post", "positions": "learned", "bias": True,
            "embedding_norm": True, **implies,
        },
        neutral={
            "is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": (None, "absolute"),
            "tie_word_embeddings": (True,), "problem_type": (None, "single_label_classification"),
        },
        prefix="",
        outer={**_OUTER, **outer},
        tensors={**_TYPES, **tensors},
        block="bert.encoder.layer.{}.",
        inner={
            "attention.input": Part(("attention.self.query", "attention.self.key", "attention.self.value")),
            "attention.output": Part(("attention.output.dense",)),
            "attention_norm": Part(("attention.output.LayerNorm",)),
            "feed_forward.up": Part(("intermediate.dense",)),
            "feed_forward.down": Part(("output.dense",)),
            "feed_forward_norm": Part(("output.LayerNorm",)),
        },
        head=("cls.predictions.decoder",),
        renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
        unused=("embeddings.position_ids", *unused),
        has_biases=True,
    )  # fmt: skip


FAMILIES = (
    _bert(
        "BertForMaskedLM",
        MASKED_LM,
        implies={"output_transform": True},
        outer={
            "transform.up": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        },
        tensors={"output_bias": "cls.predictions.bias"},
        unused=(
            "cls.predictions.decoder.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
            "bert.pooler.dense.weight", "bert.pooler.dense.bias",
        ),
    ),
    _bert(
        "BertForSequenceClassification",
        SEQUENCE_CLASSIFICATION,
        implies={},
        outer={"classifier.pooler": "bert.pooler.dense", "classifier.labels": "classifier"},
        tensors={},
        unused=(),
    ),
)  # fmt: skip
