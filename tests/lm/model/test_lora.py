"""A model with adapters computes what a plain one with W + scale · B A computes, which is what merging makes of it."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.run_config import LoraConfig
from lm.model import build_model
from lm.model.lora import (
    build_model_with_lora,
    load_frozen,
    lora_layers,
    merge_adapters,
    trainable_weights,
)
from tests.tolerances import assert_close

SHAPE = {"vocab_size": 40, "context_length": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
MODELS = {
    "gpt": {"activation": "gelu", "bias": True, "norm": "layernorm", "value_residual": True},
    "llama": {"n_kv_heads": 2, "d_head": 12},
    "tied sizes": {"d_head": 4, "n_kv_heads": 2, "d_ff": 16},
    "encoder-decoder": {"n_encoder_layers": 1, "bias": True, "n_kv_heads": 1},
    "experts": {"experts": 3, "experts_per_token": 2},
    "compressed": {"attention": "compressed", "attention_block": 8},
    "masked": {"objective": "masked", "output_transform": True, "bias": True},
}
PROJECTED = {
    "attention.input": lambda c: [c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_head],
    "feed_forward.up": lambda c: [c.d_ff] * (2 if c.activation == "swiglu" else 1),
}


def filled(model, lora, *, seed=1):
    """A model with random numbers in its adapters too."""
    built = build_model_with_lora(model, lora, seed=0)
    torch.manual_seed(seed)
    for layer in lora_layers(built).values():
        torch.nn.init.normal_(layer.lora_a, std=0.3)
        torch.nn.init.normal_(layer.lora_b, std=0.3)
    return built.eval()


@torch.no_grad()
def by_hand(model, config, lora):
    """A plain model in float64, whose matrices are W + scale · B A, row by row of each projection."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    for name in [name.removesuffix(".lora_a") for name in weights if name.endswith(".lora_a")]:
        a, b = weights.pop(f"{name}.lora_a"), weights.pop(f"{name}.lora_b")
        kind = ".".join(name.split(".")[-2:]).removeprefix("cross_")
        kind = "feed_forward.up" if name.endswith(".up") else kind.replace("cross_attention", "attention")
        sizes = PROJECTED[kind](config) if kind in PROJECTED else [len(b)]
        row = 0
        for number, size in enumerate(sizes):
            of_part = a[number * lora.rank : (number + 1) * lora.rank]
            for output in range(row, row + size):
                for k in range(lora.rank):
                    weights[f"{name}.weight"][output] += lora.scale * b[output, k] * of_part[k]
            row += size
    plain = build_model(config).double().eval()
    plain.load_state_dict(weights)
    return plain


def logits(model, config):
    tokens = torch.randint(config.vocab_size, (3, 17), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        if config.is_encoder_decoder:
            return model(tokens, tokens[:, :9], lengths=torch.tensor([17, 3, 8]))
        return model(tokens)


@pytest.mark.parametrize("on", ["attention,feed-forward", "attention"])
@pytest.mark.parametrize("kind", MODELS)
def test_logits_equal_those_of_merged_weights(kind, on):
    config, lora = ModelConfig(**SHAPE, **MODELS[kind]), LoraConfig(rank=3, on=on, alpha=5.0)
    model = filled(config, lora)
    expected = logits(by_hand(model, config, lora), config).float()
    assert_close(logits(model, config), expected, model=model)
    plain = build_model(config).eval()
    plain.load_state_dict(merge_adapters(config, lora, model.state_dict()))
    assert_close(logits(plain, config), expected, model=model)
    assert (logits(plain, config) - logits(build_model(config).eval(), config)).abs().max() > 0.01


def test_only_they_are_trained_and_what_a_classifier_has_for_its_labels():
    config = ModelConfig(**SHAPE, objective="masked", labels=("a", "b"))
    model = build_model_with_lora(config, LoraConfig(rank=2))
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert names == trainable_weights(model).keys()
    assert {name for name in names if ".lora_" not in name} == {
        f"classifier.{layer}.{kind}" for layer in ("pooler", "labels") for kind in ("weight", "bias")
    }


def test_a_base_of_fewer_bits_loses_none_of_what_is_added():
    config, lora = ModelConfig(**SHAPE), LoraConfig(rank=2)
    model = filled(config, lora)
    weights = {name: value if ".lora_" in name else value.bfloat16() for name, value in model.state_dict().items()}
    load_frozen(model, {name: value.float() for name, value in weights.items()})
    plain = build_model(config).eval()
    made = merge_adapters(config, lora, weights)
    assert {value.dtype for value in made.values()} == {torch.float32}
    plain.load_state_dict(made)
    assert_close(logits(plain, config), logits(model, config), model=model)
