"""What Python code of a tree says about a run: probes by name, a version for the base commit and one for this tree.

A probe takes a path and returns arrays by name. Where an API of the working tree changes, its version goes into `TREE`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]
_BATCHES = 4


def losses(run: Path) -> Arrays:
    """Return losses, rates and scores of all steps and evaluations."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def weights(run: Path) -> Arrays:
    """Return the tensors of the last checkpoint, adapters merged."""
    from lm.checkpoint import load_weights
    from lm.run_folder import find_checkpoint

    return {name: tensor.float().numpy() for name, tensor in load_weights(find_checkpoint(run, which="last")).items()}


def tokens(path: Path) -> Arrays:
    """Return the token IDs of both splits of a text, for a run or prepared data; batches show those of other kinds."""
    from lm.corpus.manifest import PreparedManifest
    from lm.corpus.shards import open_split

    return _tokens(path, "manifest.json", PreparedManifest.read, open_split)


def tokens_of_store(path: Path) -> Arrays:
    """Return the same."""
    from lm.corpus import MANIFEST, Manifest, open_split

    return _tokens(path, MANIFEST, Manifest.read, open_split)


def _tokens(path: Path, manifest: str, read: Callable[[Path], Any], open_split: Callable[..., Any]) -> Arrays:
    from lm.run_folder import load_config

    folder = path if (path / manifest).is_file() else Path(load_config(path).plan.data)
    if read(folder).kind != "text":
        return {}
    return {
        split: open_split(folder, split).read(0, len(open_split(folder, split))) for split in ("train", "validation")
    }


def batches(run: Path) -> Arrays:
    """Return the arrays of the first batches for training, and of those for validation."""
    from lm.run_folder import load_config
    from lm.training.training_corpus import open_data

    config, found, consumed = load_config(run), Arrays(), 0
    data = open_data(Path(config.plan.data), config)
    data.set_total_steps(_BATCHES)
    for number in range(_BATCHES):
        batch = data.batch(consumed)
        consumed += len(batch.inputs)
        found |= _arrays(f"batch {number}", batch)
    for number, batch in zip(range(_BATCHES), data.validation(), strict=False):
        found |= _arrays(f"validation batch {number}", batch)
    return found


def results(run: Path) -> Arrays:
    """Return all of these of a run."""
    return _results(run, tokens)


def results_of_store(run: Path) -> Arrays:
    """Return the same."""
    return _results(run, tokens_of_store)


def _results(run: Path, read: Callable[[Path], Arrays]) -> Arrays:
    parts = {"losses": losses, "weights": weights, "tokens": read, "batches": batches}
    return {f"{part} {name}": value for part, probe in parts.items() for name, value in probe(run).items()}


def exported(path: Path) -> Arrays:
    """Return the tensors of an exported folder, or the bytes of an exported file."""
    from safetensors.torch import load_file

    files: Iterator[Path] = path.glob("*.safetensors") if path.is_dir() else iter(())
    tensors = {name: tensor.float().numpy() for file in files for name, tensor in load_file(file).items()}
    binary = [path] if path.is_file() else [*path.glob("*.bin")]
    return tensors | {file.name: np.fromfile(file, np.uint8) for file in binary}


def _arrays(name: str, batch: Any) -> Arrays:
    return {f"{name} {field}": value for field, value in vars(batch).items() if isinstance(value, np.ndarray)}


BASE: Mapping[str, Callable[[Path], Arrays]] = {
    each.__name__: each for each in (losses, weights, tokens, batches, results, exported)
}
TREE = {**BASE, "tokens": tokens_of_store, "results": results_of_store}
