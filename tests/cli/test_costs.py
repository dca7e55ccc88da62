"""What a model costs, worked out from its shape."""

from __future__ import annotations

from cli.costs import costs, count_parameters
from lm.config.presets import resolve


def test_the_costs_of_gpt2():
    """Of 124 M parameters: embeddings of 50,257 tokens and 1,024 positions, and 12 blocks with biases and norms."""
    config = resolve("gpt2")
    found = costs(config)
    block = 12 * 768**2 + (3 + 1 + 4 + 1) * 768 + 4 * 768
    total = (50_257 + 1024) * 768 + 12 * block + 2 * 768
    assert count_parameters(config) == found["parameters"]["total"] == total
    assert sum(found["parameters"].values()) == 2 * total
    assert found["weights_bytes"] == {"float32": 4 * total, "bfloat16": 2 * total}
    assert found["training_bytes"] == 4 * 4 * total  # weights, gradients, AdamW's two moments
    assert found["cache_bytes_per_token"] == 4 * 2 * 12 * 768
    assert "cross-attention" not in found["parameters"]
