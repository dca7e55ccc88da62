"""Models of the Hugging Face Hub by name: `hf:ORG/NAME`, or `hf:ORG/NAME@REVISION`.

A model is downloaded by `huggingface_hub`, into that library's cache, and imported once, into ours. Its settings hold:
the token, the endpoint, offline mode and the place of the cache. Only weights in .safetensors, the tokenizer and the
configuration are downloaded; config.json comes first, so that a model that is not supported costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm import files, run_folder
from lm.errors import InputError, UsageError, missing_packages
from lm.interop.hugging_face.configuration import from_json
from lm.interop.hugging_face.folder import CONFIG, GENERATION, INDEX, TOKENIZER_CONFIG, WEIGHTS, read_config
from lm.interop.hugging_face.importing import import_model
from lm.tokenizer.chat_template import TEMPLATE_FILE
from lm.tokenizer.tokenizer import FILE_NAME

PREFIX = "hf:"
_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")
_FILES = [
    CONFIG, GENERATION, TOKENIZER_CONFIG, TEMPLATE_FILE, FILE_NAME, INDEX, WEIGHTS, "model-*-of-*.safetensors",
    "source.spm", "target.spm", "vocab.json", "merges.txt", "special_tokens_map.json",
]  # fmt: skip
_FOLDER = "models"
_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class HubName:
    """The name of a model of the Hub.

    Attributes:
        repository: organisation and name.
        revision: a branch, tag or commit; None for the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


def is_hub_name(name: object) -> bool:
    """Return whether a path or name is that of a model of the Hub."""
    return str(name).startswith(PREFIX)


def parse_hub_name(name: str) -> HubName:
    """Parse a name; UsageError if it is malformed."""
    repository, at, revision = name.removeprefix(PREFIX).partition("@")
    if not _NAME.fullmatch(repository) or (at and not revision):
        raise UsageError(f"{name}: not the name of a model; write hf:ORG/NAME, or hf:ORG/NAME@REVISION")
    return HubName(repository, revision or None)


def download_model(name: HubName) -> Path:
    """Download a model, as far as it is not in the cache of `huggingface_hub`, and return its folder.

    Raises:
        InputError: the Hub cannot be reached and the model is not in the cache, there is no such model or revision, it
            needs an agreement or a token, or it is not supported; or the package is not installed.
    """
    hub = _import_hub()
    folder = _fetch(hub, name, [CONFIG])
    if (folder / CONFIG).is_file():
        from_json(read_config(folder), Path(f"{name}/{CONFIG}"))
    return _fetch(hub, name, _FILES)


def import_from_hub(name: HubName, *, on_import: Callable[[Path], object] = lambda _: None) -> Path:
    """Download and import a model, unless that was done before, and return its run in our cache.

    Args:
        on_import: called with the new run, before others see it.

    Raises:
        InputError: as of `download_model` and `import_model`.
    """
    folder = download_model(name)
    run = files.cache_root() / _FOLDER / f"{name.repository.replace('/', '--')}-{folder.name[:_COMMIT_DIGITS]}"
    if run_folder.is_run(run):
        return run
    unfinished = run.with_name(f".{run.name}.{os.getpid()}")
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        import_model(folder, unfinished)
        on_import(unfinished)
        with contextlib.suppress(OSError):  # another process was faster
            unfinished.rename(run)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return run


def _import_hub() -> Any:
    try:
        import huggingface_hub.constants  # noqa: PLC0415 (an optional dependency)
        import huggingface_hub.errors  # noqa: PLC0415
    except ImportError:
        raise missing_packages("the Hugging Face Hub", "huggingface_hub") from None
    return huggingface_hub


def _fetch(hub: Any, name: HubName, patterns: list[str]) -> Path:
    """Download files of a model; return the folder of its revision."""
    errors = hub.errors
    try:
        return Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=patterns))
    except errors.GatedRepoError:
        page = f"{hub.constants.ENDPOINT}/{name.repository}"
        raise InputError(f"{name}: needs an agreement: accept it at {page}, then log in (hf auth login)") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name}: the model has no revision {name.revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"{name}: no such model, or a private one: check the name or log in (hf auth login)") from None
    except errors.HFValidationError as error:
        raise InputError(f"{name}: {_first_line(error)}") from None
    except Exception as error:  # of the library, and of several HTTP clients
        raise _explain(hub, name, error) from None


def _explain(hub: Any, name: HubName, error: Exception) -> Exception:
    """Return the error for a failed download, by what caused it."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    statuses = [getattr(getattr(cause, "response", None), "status_code", None) for cause in causes]
    status = next((code for code in statuses if code is not None), None)
    if status in (401, 403):
        return InputError(f"{name}: access is denied (HTTP {status}): log in (hf auth login)")
    if status is not None:
        return InputError(f"{name}: {hub.constants.ENDPOINT} answers with HTTP {status}, and no copy is in the cache")
    if hub.constants.HF_HUB_OFFLINE:
        return InputError(f"{name}: not in the cache of huggingface_hub, and HF_HUB_OFFLINE forbids downloading it")
    if isinstance(error, hub.errors.LocalEntryNotFoundError) or type(error).__module__.startswith("httpx"):
        reached = f"{hub.constants.ENDPOINT} cannot be reached, and no copy is in the cache"
        return InputError(f"{name}: {reached} ({_first_line(causes[-1])})")
    return error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
