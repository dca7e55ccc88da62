"""What must be the same on every machine: token IDs, shards, the order of data, and initial weights.

    python -m tests.golden.hashes [--base COMMIT]    writes tests/golden/hashes.json as an earlier commit has it

Integers are compared by hash. Initial weights go through logarithms and cosines, which processors round differently:
of these the first and last value of each tensor are kept, to six digits, which tells any other order of draws apart.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.texts import write_texts

HASHES = Path(__file__).parent / "hashes.json"
RUNS = Path(__file__).parent / "runs"

_ORDERS = ("gpt", "masked", "questions", "classifier", "translation", "one-stack", "syntax")
"""Runs of which the batches are recorded: one for each kind of data and layout."""
_BATCHES = 4
_PREPARED = {
    "text": "text/stories.txt --vocab-size 300",
    "documents": "text/stories.jsonl --vocab-size 300 --processes 1",
    "characters": "text/stories.txt --kind char --validation 0.3",
    "bytes": "text/folder --kind byte",
    "examples": "text/train-questions.jsonl --supervised --vocab-size 300",
}
_PAIRS = (
    "train --source text/train.en --target text/train.de --preset translation-tiny --d-model 16 --n-layers 1 "
    "--n-encoder-layers 1 --n-heads 2 --vocab-size 300 --steps 1 --batch-tokens 200 --evaluate-every 0 --best-by loss "
    "--device cpu --dtype float32 --threads 1 -o run"
)
_TINY = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "n_heads": 2, "context_length": 12}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recipe": {"positions": "rotary", "qk_norm": True, "zero_init": True, "value_residual": True},
    "gpt2": {"positions": "learned", "bias": True, "init_std": 0.02},
    "untied": {"tie_embeddings": False, "activation": "swiglu", "norm": "rmsnorm", "n_kv_heads": 1},
    "relative": {"positions": "relative", "embedding_shortcut": True, "output_bias": True},
    "t5": {"positions": "t5", "parallel_residual": True},
    "experts": {"experts": 3, "gate_noise": 1.0},
    "lstm": {"architecture": "lstm", "n_heads": 4},
    "compressed": {"attention": "compressed", "n_layers": 2},
    "masked": {"objective": "masked", "output_transform": True, "embedding_norm": True, "token_types": 2},
    "linformer": {"objective": "masked", "attention": "linformer", "attention_rank": 4},
    "translation": {"n_encoder_layers": 1, "positions": "sinusoidal", "bias": True},
    "separate": {"n_encoder_layers": 1, "source_vocab_size": 7},
    "syntax": {"n_encoder_layers": 1, "syntax": "both", "positions": "relative"},
    "gru": {"architecture": "gru", "n_encoder_layers": 1, "recurrent_attention": "general", "n_heads": 4},
}
"""Fields of small models, one for each way of beginning."""


def main() -> None:
    """Write what an earlier commit computes."""
    from tests.golden.compare import BASE, extracted

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, help="commit whose results are written")
    base = parser.parse_args().base
    with tempfile.TemporaryDirectory() as folder:
        tree = extracted(base, Path(folder, "tree"))
        code = "from tests.golden import hashes; import json; print(json.dumps(hashes.measured(), indent=0))"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(Path(__file__).parents[2])])}
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    HASHES.write_text(done.stdout[done.stdout.index("{\n") :])


def measured() -> dict[str, Any]:
    """Everything, by name."""
    with tempfile.TemporaryDirectory() as folder:
        weights = {f"weights {name}": initial_values(name) for name in MODELS}
        return {**prepared(Path(folder)), **batches(), **weights}


def prepared(folder: Path) -> dict[str, str]:
    """Hashes of token IDs and of prepared tokens, of texts in a new folder; changes the working directory meanwhile."""
    from cli.main import run

    write_texts(folder / "text")
    before, cache = Path.cwd(), os.environ.get("LM_CACHE")
    os.chdir(folder)
    os.environ["LM_CACHE"] = str(folder / "cache")
    try:
        for name, settings in _PREPARED.items():
            assert run(["prepare", *settings.split(), "-o", f"tokens-{name}"]) == 0
        assert run(_PAIRS.split()) == 0
    finally:
        os.chdir(before)
        del os.environ["LM_CACHE"]
        if cache is not None:
            os.environ["LM_CACHE"] = cache
    found = {f"prepared {name}": _of_arrays(folder / f"tokens-{name}") for name in _PREPARED}
    plan = json.loads((folder / "run" / "config.json").read_text())["plan"]
    return {**found, "prepared pairs": _of_arrays(Path(plan["data"]))}


def batches() -> dict[str, str]:
    """Hashes of the first training batches and of the validation batches of runs."""
    from lm.run_folder import load_config
    from lm.training.training_corpus import open_data

    found = {}
    for name in _ORDERS:
        config = load_config(RUNS / name)
        assert config.plan is not None
        data, consumed, digest = open_data(RUNS / config.plan.data, config), 0, hashlib.sha256()
        data.set_total_steps(_BATCHES)
        for _ in range(_BATCHES):
            batch = data.batch(consumed)
            consumed += len(batch.inputs)
            _add(digest, batch)
        for batch in data.validation():
            _add(digest, batch)
        found[f"batches {name}"] = digest.hexdigest()
    return found


def initial_values(name: str) -> dict[str, list[float]]:
    """The first and the last number of each parameter of a small model."""
    from lm.config.model import ModelConfig
    from lm.model.transformer import build_model

    model = build_model(ModelConfig(**{**_TINY, **MODELS[name]}), seed=4)
    ends = {parameter: tensor.detach().flatten()[[0, -1]].tolist() for parameter, tensor in model.named_parameters()}
    return {parameter: [float(f"{number:.6g}") for number in numbers] for parameter, numbers in ends.items()}


def _of_arrays(folder: Path) -> str:
    """A hash of the arrays and tokenizers in a folder."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(path.name.encode())
        if path.suffix == ".npy":
            array = np.load(path)
            digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix == ".npy" or "tokenizer" in path.name)


def _add(digest: Any, batch: Any) -> None:
    """Add the arrays of a batch, by the names of its fields."""
    for field in fields(batch):
        if isinstance(value := getattr(batch, field.name), np.ndarray):
            digest.update(f"{field.name}{value.shape}".encode() + value.astype("<i8").tobytes())


if __name__ == "__main__":
    main()
