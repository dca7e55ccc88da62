"""`njit` with an on-disk cache for compiled functions: immutable files in a folder that may be read-only.

numba's own cache abandons a folder that it can't write to, and compiles again; and it keeps an index for each function,
which every process rewrites.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.runtime import rtsys

from lm.kernels import code_cache
from lm.signals import delayed_interrupt

Function = Callable[..., Any]


def njit(function: Function | None = None, *, is_entry: bool = False, **options: Any) -> Any:  # noqa: ANN401 (numba has no types)
    """`numba.njit`, with compiled functions kept in the code cache.

    Args:
        is_entry: whether Python calls it; other functions get no wrappers, which take time to compile.
        options: of `numba.njit`.
    """
    if function is None:
        return partial(njit, is_entry=is_entry, **options)
    dispatcher = numba.njit(no_cpython_wrapper=not is_entry, no_cfunc_wrapper=True, **options)(function)
    dispatcher._cache = _Cache(function)
    return dispatcher


class _Locator(UserProvidedCacheLocator):
    """The folder configured in numba, or the code cache; it need not exist or be writable."""

    def __init__(self, function: Function, file: str) -> None:
        super().__init__(function, file)
        folder = numba.config.CACHE_DIR or str(code_cache.code_folder())
        self._cache_path = str(Path(folder, self.get_suitable_cache_subpath(file)))

    @classmethod
    def from_function(cls, function: Function, file: str) -> _Locator:
        return cls(function, file)


class _Names:
    """Replaces numba's index: computes the file name of a key."""

    def __init__(self, begin: str, stamp: object) -> None:
        self._begin, self._stamp = begin, stamp

    def __getitem__(self, key: object) -> str:
        digest = hashlib.sha256(repr((self._stamp, key)).encode()).hexdigest()
        return f"{self._begin}-{digest[:16]}{code_cache.SUFFIX}"

    def get(self, key: object) -> str:
        return self[key]


class _Files(IndexDataCacheFile):
    """The files of a function, named by a hash of source and key."""

    def _load_index(self) -> _Names:
        return _Names(self._index_name.removesuffix(".nbi"), (self._version, self._source_stamp))

    def _dump(self, obj: Any) -> bytes:  # noqa: ANN401
        return code_cache.append_checksum(super()._dump(obj))

    def _load_data(self, name: str) -> Any:  # noqa: ANN401
        """Load a compiled function; None, so that it is compiled again, if its file is missing or damaged."""
        return super()._load_data(name) if code_cache.has_valid_checksum(Path(self._data_path(name))) else None


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (numba's)

    def reduce(self, data: Any) -> Any:  # noqa: ANN401
        """Return what is saved: no environments without constants, as loading them imports their modules."""
        *others, environments = super().reduce(data)
        return *others, tuple(environment for environment in environments if environment.consts)


class _Cache(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    @delayed_interrupt()
    def load_overload(self, sig: Any, target_context: Any) -> Any:  # noqa: ANN401
        """Load a compiled function, without the modules that only compiling needs, which took as long again."""
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:  # noqa: ANN401
        """Save a compiled function; failing to write is an error only while `lm compile` runs."""
        with contextlib.nullcontext() if code_cache.is_saving() else contextlib.suppress(OSError):
            super().save_overload(sig, data)
