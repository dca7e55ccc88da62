"""Files of ours in llama.cpp, by its Python binding, computed with as exactly as it can."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_EXACT = {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "flash_attn": False}
"""One thread, and keys and values remembered in float32."""


def loaded(path: Path, *, context: int = 64) -> Any:
    """The model of a file; skips where the binding is not installed."""
    llama_cpp = pytest.importorskip("llama_cpp")
    return llama_cpp.Llama(str(path), n_ctx=context, logits_all=True, verbose=False, **_EXACT)


def logits(model: Any, tokens: Sequence[int]) -> np.ndarray:
    """(tokens, vocabulary) float32, all read at once."""
    model.reset()
    model.eval(list(tokens))
    return np.array(model.scores[: len(tokens)])
