"""Recurrent stacks against loops over positions in float64, written out from the papers' equations."""

import pytest
import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model import EncoderDecoder, build_model
from tests.tolerances import assert_close

LENGTHS = torch.tensor([3, 7, 1])


def small(architecture: str = "lstm", *, seed: int = 1, **fields) -> EncoderDecoder:
    config = {
        "vocab_size": 23, "context_length": 40, "d_model": 12, "n_layers": 2, "n_encoder_layers": 2, "init_std": 0.5,
        **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(architecture=architecture, **config), seed=seed).eval()
    chance = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.normal_(std=0.5, generator=chance)
    return model.requires_grad_(False)


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 23, shape, generator=torch.Generator().manual_seed(seed))


def lstm_step(x, states, weights):
    """Hochreiter and Schmidhuber 1997, with forget gates; weights of inputs, states, and their biases."""
    h, c = states
    of_input, of_state, input_bias, state_bias = weights
    i, f, g, o = (of_input @ x + input_bias + of_state @ h + state_bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(x, states, weights):
    """Cho et al. 2014, with the reset gate after the product, as cuDNN has it."""
    (h,) = states
    of_input, of_state, input_bias, state_bias = weights
    xr, xz, xn = (of_input @ x + input_bias).chunk(3)
    hr, hz, hn = (of_state @ h + state_bias).chunk(3)
    z = (xz + hz).sigmoid()
    return ((1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * h,)


def layer_loop(layer, xs, states, *, suffix=""):
    """The states of one direction of a layer after each position."""
    weights = [getattr(layer, name + suffix) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
    step, found = lstm_step if isinstance(layer, torch.nn.LSTM) else gru_step, []
    for x in xs:
        states = step(x, states, weights)
        found.append(states[0])
    return found


def reference(model: EncoderDecoder, source: list[int], target: list[int]) -> Tensor:
    """(target length, vocabulary) logits of one pair in float64."""
    config, parts = model.config, 2 if model.config.architecture == "lstm" else 1
    width, table = config.d_model, model.embedding.tokens.weight
    xs = list(table[source])
    for layer in model.encoder.recurrent:
        zeros = [torch.zeros(width // 2, dtype=torch.float64)] * parts
        forward = layer_loop(layer, xs, zeros)
        backward = layer_loop(layer, xs[::-1], zeros, suffix="_reverse")[::-1]
        xs = [torch.cat(pair) for pair in zip(forward, backward, strict=True)]
    memory, start = xs, model.decoder.recurrent_start
    first = (start.weight @ torch.cat((memory[-1][: width // 2], memory[0][width // 2 :])) + start.bias).tanh()
    ys = list(table[target])
    for number, layer in enumerate(model.decoder.recurrent):
        states = first.view(-1, parts, width)[number].unbind()
        ys = layer_loop(layer, ys, states)
    if config.recurrent_attention != "none":
        ys = [attended(model.decoder.cross_attention, h, memory, config.recurrent_attention) for h in ys]
    return torch.stack(ys) @ table.T


def attended(attention, h, memory, scores) -> Tensor:
    """One state with what it found in the source: Luong et al. 2015, equations 5 and 7; Bahdanau et al. 2015, A.1.2."""
    score = {
        "dot": lambda m: h @ m,
        "general": lambda m: h @ (attention.key.weight @ m),
        "additive": lambda m: attention.score.weight[0] @ (
            attention.query.weight @ h + attention.query.bias + attention.key.weight @ m
        ).tanh(),
    }[scores]  # fmt: skip
    weights = torch.stack([score(m) for m in memory]).softmax(0)
    found = sum(weight * m for weight, m in zip(weights, memory, strict=True))
    return (attention.combine.weight @ torch.cat((found, h)) + attention.combine.bias).tanh()


@pytest.mark.parametrize("scores", ["none", "dot", "general", "additive"])
@pytest.mark.parametrize("architecture", ["lstm", "gru"])
def test_equals_a_loop_in_float64(architecture, scores):
    model, source, target = small(architecture, recurrent_attention=scores), ids(3, 7), ids(3, 5, seed=1)
    logits = model(source, target, lengths=LENGTHS)
    model.double()
    for row, length in enumerate(LENGTHS):
        expected = reference(model, source[row, :length].tolist(), target[row].tolist())
        assert_close(logits[row], expected, model=model)
