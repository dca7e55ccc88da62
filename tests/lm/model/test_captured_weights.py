"""Captured weights are those that attention uses: with values written out here they give the output of each layer."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import build_model
from lm.model.attention import capture_attention_weights
from tests.lm.model.hugging_face import randomise
from tests.tolerances import assert_close

LENGTHS = torch.tensor([9, 4])


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("value_residual", [False, True])
@pytest.mark.parametrize("layers", [{}, {"n_encoder_layers": 2, "qk_norm": True}])
def test_outputs_are_weighted_values_in_float64(layers, value_residual, kv_heads):
    """Values of a layer are mixed with those of the first one, except in cross-attention."""
    config = ModelConfig(
        vocab_size=61, d_model=32, n_layers=3, n_heads=4, n_kv_heads=kv_heads, value_residual=value_residual, **layers
    )
    model = build_model(config).eval()
    randomise(model)
    model.double().requires_grad_(False)
    arguments, keywords = ((ids(2, 9), ids(2, 7)), {"lengths": LENGTHS}) if layers else ((ids(2, 9),), {})
    before, outputs, first = model(*arguments, **keywords), [], {}
    stacks = {"decoder": model.decoder.attention_layers(), "cross": model.decoder.attention_layers(cross=True)}
    stacks |= {"encoder": model.encoder.attention_layers()} if layers else {}
    names = {attention: stack for stack, attentions in stacks.items() for attention in attentions}
    hooks = [each.register_forward_hook(lambda *call: outputs.append(call)) for each in names]
    with capture_attention_weights(names) as weights:
        assert torch.equal(model(*arguments, **keywords), before)
    for hook in hooks:
        hook.remove()
    model(*arguments, **keywords)
    assert len(weights) == len(outputs) == len(names)
    for (attention, (x, inputs), output), seen in zip(outputs, weights, strict=True):
        values = (x if inputs.encoder_output is None else inputs.encoder_output) @ attention.input.weight.T
        values = values[..., -kv_heads * 8 :]
        if attention.value_scalars is not None:
            own, other = values, first.setdefault(names[attention], values)
            values = attention.value_scalars[0] * other + attention.value_scalars[1] * own
        values = values.unflatten(-1, (kv_heads, 8)).repeat_interleave(4 // kv_heads, dim=2).transpose(1, 2)
        expected = (seen.double() @ values).transpose(1, 2).flatten(2) @ attention.output.weight.T
        assert_close(output, expected, model=model, dtype=torch.float32)
        assert names[attention] == "decoder" or not seen[1, ..., 4:].any()
