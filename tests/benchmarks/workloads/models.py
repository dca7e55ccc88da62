"""Models with random weights: as a run, and exported for the baselines, so that all systems have the same weights."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from lm.api import export
from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.engine import compile_decode_step
from lm.kernels import code_cache
from lm.model import build_model
from lm.run_folder import TrainingState
from tests.benchmarks.workloads.paths import model_path
from tests.cli.small_runs import make_tokenizer

_GPT2_SMALL = {"n_layers": 6, "d_model": 384, "n_heads": 6, "context_length": 256, "vocab_size": 4096}
_NANOGPT = {"n_layers": 4, "d_model": 128, "n_heads": 4, "context_length": 64, "vocab_size": 65}
_SMOLLM = {
    "n_layers": 30, "d_model": 576, "n_heads": 9, "n_kv_heads": 3, "d_ff": 1536, "context_length": 2048,
    "vocab_size": 49152,
}  # fmt: skip
"""SmolLM 135M (2024)."""
SHAPES: dict[str, ModelConfig] = {
    "small": build_run_config("small").model,
    "0.8M": build_run_config("gpt2", {"model": _NANOGPT}).model,
    "12.3M": build_run_config("gpt2", {"model": _GPT2_SMALL}).model,
    "124M": build_run_config("gpt2").model,
    "135M": build_run_config("llama-15m", {"model": _SMOLLM}).model,
}
_EXPORTERS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "hugging-face": ("transformers", export),
    "ctranslate2-float32": ("ctranslate2", partial(export, to="ctranslate2")),
    "ctranslate2-int8": ("ctranslate2", partial(export, to="ctranslate2", type="int8")),
    "gguf-q8_0": ("gguf", partial(export, to="gguf", type="q8_0")),
}
"""The package that each format is for, and its exporter."""


def prepare(folder: Path, *, shapes: Mapping[str, Sequence[str]], compiled: bool = False) -> None:
    """Write models with random weights as runs and in other formats, unless they are there.

    Args:
        folder: of all models.
        shapes: for each shape of `SHAPES` the other formats; those whose package is not installed are left out.
        compiled: also do what `lm compile` does, if numba is installed.
    """
    for shape, exports in shapes.items():
        run, config = model_path(folder, shape), SHAPES[shape]
        if not run.exists():
            # the tokenizer has fewer tokens than the model, and only names them
            save_checkpoint(
                run, config=RunConfig(model=config), tokenizer=make_tokenizer("bpe"),
                model=build_model(config).state_dict(), state=TrainingState(), is_best=True,
            )  # fmt: skip
        for form in exports:
            path, (package, export) = model_path(folder, shape, form), _EXPORTERS[form]
            if find_spec(package) is not None and not path.exists():
                export(run, path)
    if compiled and code_cache.is_installed():
        compile_decode_step()
