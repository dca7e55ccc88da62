"""What stands between the final states of a model and its output layer."""

from __future__ import annotations

from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.dropout import Dropout
from lm.model.linear import Linear
from lm.model.norms import make_norm


class OutputTransform(nn.Module):
    """One more layer at each position, before the output layer: linear, activation, normalisation.

    Source: Devlin et al. 2019 (in their code).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        widths = 2 if config.activation == "swiglu" else 1  # a gate, and what it lets through
        self.up = Linear(config.d_model, widths * config.d_model, bias=config.bias)
        self.activation = config.activation
        self.norm = make_norm(config)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> the same shape."""
        return self.norm(self.up.activated(x, self.activation))


class LabelHead(nn.Module):
    """What a classifier makes of a text: the state of its first token, pooled, and a row of weights for each label.

    The first token is the one that starts a text, as BERT's [CLS].

    Source: Devlin et al. 2019, section 3.2 and their code (the pooler).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.d_model, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.labels = Linear(config.d_model, len(config.labels))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) final states -> (batch, 1, d_model)."""
        return self.dropout(self.pooler(x[:, :1]).tanh())
