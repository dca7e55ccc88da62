"""Models of the Hugging Face Hub by name: `hf:ORG/NAME`, or `hf:ORG/NAME@REVISION`.

A model is downloaded by `huggingface_hub`, into that library's cache, and imported once, into ours. Its settings hold:
the token, the endpoint, offline mode and the place of the cache. Only weights in .safetensors, the tokenizer and the
configuration are downloaded; config.json comes first, so that a model that is not supported costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lm import files, run_folder
from lm.errors import InputError, missing_packages
from lm.interop.hugging_face.configuration import from_json
from lm.interop.hugging_face.folder import CONFIG, GENERATION, INDEX, TOKENIZER_CONFIG, WEIGHTS
from lm.interop.hugging_face.importing import import_model
from lm.tokenizer.chat_template import TEMPLATE_FILE
from lm.tokenizer.tokenizer import FILE_NAME

PREFIX = "hf:"
_FILES = [
    CONFIG, GENERATION, TOKENIZER_CONFIG, TEMPLATE_FILE, FILE_NAME, INDEX, WEIGHTS, "model-*-of-*.safetensors",
    "source.spm", "target.spm", "vocab.json", "merges.txt", "special_tokens_map.json",
]  # fmt: skip
_COMMIT_DIGITS = 12


def is_hub_name(name: object) -> bool:
    """Return whether a path or name is that of a model of the Hub."""
    return str(name).startswith(PREFIX)


def download_model(name: str) -> Path:
    """Download a model, as far as it is not in the cache of `huggingface_hub`, and return its folder.

    Raises:
        InputError: the name is malformed, the Hub does not give the model and it is not in the cache, or it is not
            supported; or the package is not installed.
    """
    folder = _fetch(name, [CONFIG])
    from_json(files.read_json(folder / CONFIG), Path(f"{name}/{CONFIG}"))
    return _fetch(name, _FILES)


def import_from_hub(name: str, *, on_import: Callable[[Path], object] = lambda _: None) -> Path:
    """Download and import a model, unless that was done before, and return its run in our cache.

    Args:
        on_import: called with the new run, before others see it.

    Raises:
        InputError: as of `download_model` and `import_model`.
    """
    folder = download_model(name)
    repository = name.removeprefix(PREFIX).partition("@")[0]
    run = files.cache_root() / "models" / f"{repository.replace('/', '--')}-{folder.name[:_COMMIT_DIGITS]}"
    if run_folder.is_run(run):
        return run
    with files.replacing(run) as unfinished:
        import_model(folder, unfinished)
        on_import(unfinished)
    return run


def _fetch(name: str, patterns: list[str]) -> Path:
    """Download files of a model; return the folder of its revision."""
    try:
        import huggingface_hub  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("the Hugging Face Hub", "huggingface_hub") from None
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision or None, allow_patterns=patterns))
    except Exception as error:  # of the library, and of its HTTP client
        raise InputError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error
