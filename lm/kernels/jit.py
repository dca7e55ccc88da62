"""`numba.njit` with numba's cache in a folder that may be read-only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.runtime import rtsys

from lm.processes import delayed_interrupt

Function = Callable[..., Any]


def njit(function: Function | None = None, *, is_entry: bool = False, **options: Any) -> Any:
    """`numba.njit`, cached; only an `is_entry` is called by Python and gets a wrapper, which takes time to compile."""
    if function is None:
        return partial(njit, is_entry=is_entry, **options)
    dispatcher = numba.njit(no_cpython_wrapper=not is_entry, no_cfunc_wrapper=True, **options)(function)
    dispatcher._cache = _Cache(function)
    return dispatcher


class _Locator(UserProvidedCacheLocator):
    """The folder configured in numba; it need not be writable."""

    def get_cache_path(self) -> str:
        return str(numba.config.CACHE_DIR)

    @classmethod
    def from_function(cls, function: Function, file: str) -> _Locator:
        return cls(function, file)


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (numba's)


class _Cache(FunctionCache):
    _impl_class = _Implementation

    @delayed_interrupt()
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a compiled function, without what only compiling imports; None, to compile again, if it is damaged."""
        try:
            rtsys.initialize(target_context)
            return self._load_overload(sig, target_context)
        except Exception:
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled function, if the folder is writable."""
        with suppress(OSError):
            super().save_overload(sig, data)
