"""Settings of blocks drawn at random: what any of them may have, whatever computes its steps."""

import random
from collections.abc import Sequence

ACTIVATIONS = ("gelu", "swiglu", "relu2")


def random_block(
    of: random.Random, seed: int, positions: Sequence[str], activations: Sequence[str] = ACTIVATIONS
) -> dict[str, object]:
    """Fields of a `ModelConfig`; seeds that follow each other have the kinds of positions in turn."""
    fields = {
        "d_model": of.choice([16, 24]), "n_layers": of.choice([1, 3]), "n_heads": 4,
        "n_kv_heads": of.choice([None, 2, 1]), "positions": positions[seed % len(positions)],
        "norm": of.choice(["layernorm", "rmsnorm"]), "norm_position": of.choice(["pre", "post"]),
        "activation": of.choice(activations), "qk_norm": of.random() < 0.5, "bias": of.random() < 0.5,
        "tie_embeddings": of.random() < 0.5, "softcap": of.choice([0.0, 5.0]), "value_residual": of.random() < 0.5,
        "key_offset": of.random() < 0.5,
        "init_std": 0.3,
    }  # fmt: skip
    if fields["norm_position"] == "pre":
        fields |= {"parallel_residual": of.random() < 0.3}
    if fields["positions"] not in {"alibi", "relative", "t5"} and of.random() < 0.4:
        fields |= {"attention": "window", "attention_window": 3}
    return fields
