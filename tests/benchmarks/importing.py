"""The memory that it takes to import a sharded checkpoint and to load the run: `python -m tests.benchmarks.importing`.

A Llama with random weights is written in shards, in a process of its own. Then `lm import`, and loading the run with a
forward pass, are each measured in a fresh process: the growth of its peak memory, relative to the bytes of the weights.
Mapped pages of files count, though the system may reclaim them.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from lm.hardware import Hardware
from tests.benchmarks.comparison import peak_memory
from tests.cli.small_runs import make_tokenizer

HEAD, VOCABULARY = 64, 8192


def write(folder: Path, megabytes: int) -> None:
    """A model of about so many megabytes in float32, in five shards."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 1024
    of_layer = 4 * width**2 + 3 * width * 4 * width
    layers = max(1, round((megabytes * 1e6 / 4 - VOCABULARY * width) / of_layer))
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // HEAD, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=f"{megabytes // 5}MB")
    make_tokenizer("bpe").save(folder / "tokenizer.json")


def measured(step: str, folder: Path) -> tuple[int, int]:
    """Return the peak memory in bytes before a step and after it."""
    from lm.checkpoint import load_model
    from lm.interop.hugging_face.importing import import_model

    torch.ones(64, 64) @ torch.ones(64, 64)  # what torch keeps for itself
    before = peak_memory()
    if step == "import":
        import_model(folder / "model", folder / "run")
    else:
        model = load_model(folder / "run", Hardware("cpu", "float32", 1)).model
        model(torch.arange(64)[None])  # which reads all weights
    return before, peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--step", choices=["write", "import", "load"])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.step == "write":
        write(arguments.folder / "model", arguments.megabytes)
    elif arguments.step:
        print(*measured(arguments.step, arguments.folder))
    else:
        with tempfile.TemporaryDirectory() as folder:
            _all(Path(folder), arguments.megabytes)


def _all(folder: Path, megabytes: int) -> None:
    command = [sys.executable, "-m", __spec__.name, "--folder", str(folder), "--megabytes", str(megabytes)]
    subprocess.run([*command, "--step", "write"], check=True, capture_output=True)
    shards = list((folder / "model").glob("*.safetensors"))
    weights = sum(path.stat().st_size for path in shards)
    print(f"weights {weights / 1e6:.0f} MB in {len(shards)} shards")
    for step in ("import", "load"):
        printed = subprocess.run([*command, "--step", step], check=True, capture_output=True, text=True).stdout
        before, after = map(int, printed.split())
        growth = (after - before) / weights
        print(f"{step:<7} peak memory {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after: {growth:.2f} x")


if __name__ == "__main__":
    main()
