"""What blocks may share besides the residual stream: values of the first layer."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.attention import capture_attention_weights
from lm.model.transformer import build_model
from tests.lm.model.hugging_face import randomise
from tests.tolerances import assert_close


def small(**fields: object) -> ModelConfig:
    values = {"vocab_size": 61, "context_length": 32, "d_model": 32, "n_layers": 3, "n_heads": 4, **fields}
    return ModelConfig(**values)


def ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(seed))


def calls_of(modules, run):
    """The input and output of each module, in order, while `run` is called."""
    found = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: found.append((inputs[0], output))) for module in modules
    ]
    run()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("stack", ["decoder-only", "encoder", "decoder"])
def test_values_are_mixed_as_by_hand_in_float64(stack, kv_heads):
    """Each layer's attention, from its input, its weights, and values that are products written out here."""
    layers = {} if stack == "decoder-only" else {"n_encoder_layers": 3}
    model = build_model(small(value_residual=True, n_kv_heads=kv_heads, **layers)).eval()
    randomise(model)
    model.double().requires_grad_(False)
    inputs = (ids(2, 7), ids(2, 9)) if layers else (ids(2, 9),)
    attentions = (model.encoder if stack == "encoder" else model.decoder).attention_layers()
    with capture_attention_weights(attentions) as weights:
        calls = calls_of(attentions, lambda: model(*inputs))
    first = None
    for attention, (x, output), seen in zip(attentions, calls, weights, strict=True):
        own = x @ attention.input.weight[-kv_heads * 8 :].T  # (batch, length, kv_heads · head)
        first = own if first is None else first
        value = attention.value_scalars[0] * first + attention.value_scalars[1] * own
        value = value.unflatten(-1, (kv_heads, 8)).repeat_interleave(4 // kv_heads, dim=2).transpose(1, 2)
        expected = (seen.double() @ value).transpose(1, 2).flatten(2) @ attention.output.weight.T
        assert_close(output, expected, model=model, dtype=torch.float32)
