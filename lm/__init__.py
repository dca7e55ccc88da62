"""A language-model toolkit: tokenizers, training, decoding and evaluation. Prints nothing.

Start with the names in `__all__` (docs/how-to/python.md); they are imported lazily, so that `import lm` doesn't
import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm.api import Model, export, import_model, load, merge, train
    from lm.config.run_spec import RunSpec, run_spec
    from lm.decoding.batching import Finish, Token
    from lm.errors import LMError
    from lm.training.run_log import Evaluation, Sample, Saved, Step
    from lm.training.trainer import train_events

__all__ = [
    "Evaluation", "Finish", "LMError", "Model", "RunSpec", "Sample", "Saved", "Step", "Token", "export",
    "import_model", "load", "merge", "run_spec", "train", "train_events",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    light = {"LMError": "lm.errors", "RunSpec": "lm.config.run_spec", "run_spec": "lm.config.run_spec"}
    return getattr(importlib.import_module(light.get(name, "lm.api")), name)  # which imports torch
