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
    """Return the token IDs of both splits of a run or of prepared data, and which are learned."""
    from lm.corpus.manifest import PreparedManifest
    from lm.corpus.shards import open_split
    from lm.corpus.tokenized_conversations import open_conversations
    from lm.corpus.tokenized_examples import open_examples
    from lm.corpus.tokenized_pairs import open_pairs

    from lm.run_folder import load_config

    folder = path if (path / "manifest.json").is_file() else Path(load_config(path).plan.data)
    kind, found = PreparedManifest.read(folder).kind, Arrays()
    for split in ("train", "validation"):
        if kind == "pairs":
            pairs = open_pairs(folder)
            for side in ("source", "target"):
                sentences = pairs.sentences(split, side)
                rows = [
                    np.concatenate([sentences.table.row(word) for word in sentences.words.row(each)])
                    for each in range(len(sentences))
                ]
                found |= _ragged(f"{split} {side}", rows)
            positions = pairs.tree_positions(split)
            if positions is not None:
                found |= _ragged(f"{split} tree positions", [positions.row(each) for each in range(len(positions))])
        elif kind == "text":
            reader = open_split(folder, split)
            found[split] = reader.read(0, len(reader))
        else:
            stored = (open_examples if kind == "examples" else open_conversations)(folder, split)
            rows, learned = zip(*(stored.read(each) for each in range(len(stored))), strict=True)
            found |= _ragged(split, rows) | {
                f"{split} learned": np.concatenate([np.atleast_1d(each) for each in learned])
            }
    return found


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
    parts = {"losses": losses, "weights": weights, "tokens": tokens, "batches": batches}
    return {f"{part} {name}": value for part, probe in parts.items() for name, value in probe(run).items()}


def exported(path: Path) -> Arrays:
    """Return the tensors of an exported folder, or the bytes of an exported file."""
    from safetensors.torch import load_file

    files: Iterator[Path] = path.glob("*.safetensors") if path.is_dir() else iter(())
    tensors = {name: tensor.float().numpy() for file in files for name, tensor in load_file(file).items()}
    binary = [path] if path.is_file() else [*path.glob("*.bin")]
    return tensors | {file.name: np.fromfile(file, np.uint8) for file in binary}


def _ragged(name: str, rows: Any) -> Arrays:
    lengths = [len(row) for row in rows]
    return {f"{name} lengths": np.array(lengths), name: np.concatenate([np.asarray(row) for row in rows])}


def _arrays(name: str, batch: Any) -> Arrays:
    return {f"{name} {field}": value for field, value in vars(batch).items() if isinstance(value, np.ndarray)}


BASE: Mapping[str, Callable[[Path], Arrays]] = {
    each.__name__: each for each in (losses, weights, tokens, batches, results, exported)
}
TREE = {**BASE}
