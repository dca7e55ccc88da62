"""The layers that act on each position alone: normalisation, dropout, feed-forward layers and output heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.linear import Linear
from lm.model.module import Module


class RMSNorm(nn.RMSNorm, Module):
    """torch's, whose weights start at one. Source: Zhang and Sennrich 2019."""

    part = "norms"


class LayerNorm(nn.LayerNorm, Module):
    """torch's, whose weights start at one and biases at zero. Source: Ba et al. 2016."""

    part = "norms"


def make_norm(config: ModelConfig, *, part: str = "norms") -> RMSNorm | LayerNorm:
    """The kind of normalisation that a model has, over d_model, counted in a part of it."""
    if config.norm == "rmsnorm":
        norm: RMSNorm | LayerNorm = RMSNorm(config.d_model, config.norm_eps)
    else:
        norm = LayerNorm(config.d_model, config.norm_eps, bias=config.bias)
    norm.part = part
    return norm


def output_std(config: ModelConfig) -> float:
    """The standard deviation of the initial weights of a sublayer's output: smaller by √(2·layers), or zero.

    Source: Radford et al. 2019, section 2.3; zeros: Zhang et al. 2019 (Fixup), section 3.
    """
    layers = max(config.n_layers, config.n_encoder_layers)
    return 0.0 if config.zero_init else config.init_std / (2 * layers) ** 0.5


class Dropout(nn.Module):
    """Drops a share of the values while training, and scales the others up. Source: Srivastava et al. 2014."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """The same shape; what is dropped follows from torch's generator."""
        return dropout(x, self.share) if self.training else x


def dropout(x: Tensor, share: float) -> Tensor:
    """`x` with a share of its values zeroed at random, and the others divided by the share that is kept.

    On a CPU torch draws a number for each value, which takes a quarter of the step of a small encoder-decoder; a byte
    each costs a tenth of that. There the share is a multiple of 1/256, and the scale is that of what is really kept.
    """
    if share == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, share)
    draw = torch.ops.lm.kept if torch.compiler.is_compiling() else _kept
    return x * draw(x.detach(), max(1, round(256 * share)))


def _kept(like: Tensor, dropped: int) -> Tensor:
    """Zeros for `dropped` of 256 values, and for the others what keeps the mean; shape and type of `like`."""
    words = torch.empty(-(-like.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    bytes_ = words.view(torch.uint8)[: like.numel()].view(like.shape)
    keep = torch.ge(bytes_, dropped, out=torch.empty_like(like, memory_format=torch.contiguous_format))
    return keep.mul_(256 / (256 - dropped))


# A compiled model draws its masks so too: what torch.compile makes of F.dropout on a CPU costs more than it saves
_compilable = torch.library.custom_op("lm::kept", _kept, mutates_args=(), tags=torch.Tag.nondeterministic_seeded)


@_compilable.register_fake
def _(like: Tensor, dropped: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(like, memory_format=torch.contiguous_format)


class FeedForward(Module):
    """Two linear layers with an activation between them, at each position alone."""

    def __init__(self, config: ModelConfig, *, part: str = "feed-forward") -> None:
        super().__init__()
        self.part = part
        width = config.d_ff
        projected = [width, width] if config.activation == "swiglu" else [width]
        self.up = Linear(config.d_model, sum(projected), bias=config.bias, std=config.init_std, projected=projected)
        self.down = Linear(width, config.d_model, bias=config.bias, std=output_std(config))
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        return self.down(self.up.activated(x, self.activation))


class OutputTransform(Module):
    """One more layer at each position, before the output layer: linear, activation, normalisation.

    Source: Devlin et al. 2019 (in their code).
    """

    part = "output transform"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        widths = 2 if config.activation == "swiglu" else 1  # a gate, and what it lets through
        self.up = Linear(config.d_model, widths * config.d_model, bias=config.bias, std=config.init_std)
        self.activation = config.activation
        self.norm = make_norm(config, part=self.part)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> the same shape."""
        return self.norm(self.up.activated(x, self.activation))


class LabelHead(Module):
    """What a classifier makes of a text: the state of its first token, pooled, and a row of weights for each label.

    The first token is the one that starts a text, as BERT's [CLS].

    Source: Devlin et al. 2019, section 3.2 and their code (the pooler).
    """

    part = "label head"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.d_model, config.d_model, std=config.init_std)
        self.dropout = Dropout(config.dropout)
        self.labels = Linear(config.d_model, len(config.labels), std=config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) final states -> (batch, 1, d_model)."""
        return self.dropout(self.pooler(x[:, :1]).tanh())
