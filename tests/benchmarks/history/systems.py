"""The systems that the lectures lead through, each as flags of `lm train`, and what all of them have in common."""

from typing import NamedTuple


class System(NamedTuple):
    """A system to be trained.

    Attributes:
        key: the name of its runs.
        name: what a reader calls it.
        source: who described it.
        flags: of `lm train`.
    """

    key: str
    name: str
    source: str
    flags: tuple[str, ...]


_BLOCKS = ("--preset", "translation-depth-3")
_RECURRENT = (
    "--preset", "seq2seq-tiny", "--d-model", "352", "--learning-rate", "3e-3", "--recurrent-attention",
)  # fmt: skip

COMMON = (
    "--batch-tokens", "3072", "--label-smoothing", "0.1", "--dropout", "0.1", "--bleu-sentences", "200", "--threads",
    "1",
)  # fmt: skip
"""What is the same for all."""

SYSTEMS = (
    System("lstm", "LSTM, no attention", "Sutskever et al. 2014", (*_RECURRENT, "none")),
    System("lstm-dot", "LSTM, dot attention", "Luong et al. 2015", (*_RECURRENT, "dot")),
    System("lstm-additive", "LSTM, additive attention", "Bahdanau et al. 2015", (*_RECURRENT, "additive")),
    System("sinusoidal", "Transformer, sinusoidal", "Vaswani et al. 2017", (*_BLOCKS, "--positions", "sinusoidal")),
    System("learned", "Transformer, learned", "Gehring et al. 2017", (*_BLOCKS, "--positions", "learned")),
    System("relative", "Transformer, relative", "Shaw et al. 2018", (*_BLOCKS, "--positions", "relative")),
    System("rotary", "Transformer, rotary", "Su et al. 2021", (*_BLOCKS, "--positions", "rotary")),
    System("decoder-only", "Transformer-D, rotary", "Liu et al. 2018", (*_BLOCKS, "--decoder-only")),
    System("experts", "Transformer, rotary, 8 experts", "Fedus et al. 2021", (*_BLOCKS, "--experts", "8")),
)
