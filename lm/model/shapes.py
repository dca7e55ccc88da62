"""Models that have shapes and no weights yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_weights() -> Iterator[None]:
    """What is built within has shapes alone, on torch's meta device, until weights are assigned.

    No numbers are drawn for it: torch has to load its compiler to draw them on that device, which takes a second.
    """
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves tensors as they are where `torch.nn.init` would fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (whatever the function returns)
        given = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
