"""The feed-forward layer of a block."""

from __future__ import annotations

from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.linear import Linear


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at each position alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.feed_forward_width
        self.projected = [width, width] if config.activation == "swiglu" else [width]
        self.up = Linear(config.d_model, sum(self.projected), bias=config.bias)
        self.down = Linear(width, config.d_model, bias=config.bias)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        return self.down(self.up.activated(x, self.activation))
