"""Memory of decoding to the full context of GPT-2 small, by us and by Hugging Face: each in a process of its own.

    python -m tests.benchmarks.decoding_memory [--threads 1] [--context 1024]

Random weights, kept in float32 by a checkpoint, are loaded in each type; after a prompt of 32 tokens greedy decoding
fills the context. Prints how many bytes more are resident at the last token than before the model was loaded, by when
the packages and, where it is used, the step of `lm compile` were; the same of the most that was ever resident, loading
included; and both beside what the weights and the full cache have to take in that type. Last comes what was resident
before the model.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import torch

from lm.checkpoint import load_model
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.decoding.sampler import Sampler
from lm.decoding.sampling import SampleSpec, Token, generate
from lm.decoding.session import DecodeSession
from lm.engine.compiled.build import compile_decode_step
from lm.engine.selection import plan_engines
from lm.hardware import select_inference_hardware
from lm.interop.hugging_face.exporting import export_hugging_face as to_hugging_face
from lm.kernels import code_cache
from lm.model.transformer import DecoderOnly
from tests.benchmarks.generation_comparison import random_run
from tests.benchmarks.generation_throughput import PROMPT
from tests.benchmarks.sides import Side, serve

Note = Callable[..., None]
TYPES = ("float32", "bfloat16", "int8")


def resident(kind: str = "VmRSS") -> int:
    """Bytes of this process in memory, or with "VmHWM" the most that ever were."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024


def measured(decode: Callable[[Note], int]) -> dict[str, int]:
    """Bytes before, at the end and at most of what loads a model and decodes.

    Args:
        decode: calls what it is given after each token, and gives the bytes that it has to take.
    """
    before = at_the_end = resident()

    def note(*_: object) -> None:
        nonlocal at_the_end
        at_the_end = resident()

    needed = decode(note)
    return {"needed": needed, "end": at_the_end - before, "peak": resident("VmHWM") - before, "before": before}


def cache_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Of the keys and values of a full row."""
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * config.context_length * dtype.itemsize


def ours(run: Path, config: ModelConfig, dtype: str, threads: int) -> dict[str, int]:
    """As `lm generate` does it, by the compiled step where there is one."""
    if code_cache.is_compiled():
        compile_decode_step()  # which is loaded

    def decode(note: Note) -> int:
        hardware = select_inference_hardware(HardwareConfig("cpu", dtype, threads))
        model = load_model(run, hardware).model
        assert isinstance(model, DecoderOnly)
        asked = [SampleSpec(0, config.context_length - len(PROMPT) + 1)]  # the last is not read
        for event in generate(DecodeSession(plan_engines(model)), torch.tensor([PROMPT]), asked, Sampler(greedy=True)):
            if isinstance(event, Token):
                note()
        return sum(tensor.nbytes for tensor in model.state_dict().values()) + cache_bytes(config, hardware.torch_dtype)

    return measured(decode)


def theirs(folder: Path, config: ModelConfig, dtype: str, threads: int) -> dict[str, int]:
    """As transformers' `generate` does it."""
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel  # noqa: F401 (it would be loaded later)

    torch.set_num_threads(threads)

    def decode(note: Note) -> int:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        prompt, more = torch.tensor([PROMPT]), config.context_length - len(PROMPT)
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=more, min_new_tokens=more, do_sample=False,
            eos_token_id=None, pad_token_id=0, streamer=SimpleNamespace(put=note, end=note),
        )  # fmt: skip
        return sum(parameter.nbytes for parameter in model.parameters()) + cache_bytes(config, getattr(torch, dtype))

    return measured(decode)


def answer(connection: Connection, work: Callable[[], dict[str, int]]) -> None:
    """A process of its own."""
    serve(connection, {"measure": work})


def main() -> None:
    """A line for each system and type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 1), ("context", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    config = build_run_config("gpt2", {"model": {"context_length": given.context}}).model
    compile_decode_step()
    with tempfile.TemporaryDirectory() as folder:
        run, elsewhere = random_run(Path(folder) / "run", config), Path(folder) / "hf"
        to_hugging_face(run, elsewhere)
        by_torch = {"LM_CACHE": str(Path(folder) / "nothing")}  # where nothing is compiled
        systems = {
            **{f"lm, {dtype}": (partial(ours, run, config, dtype, given.threads), by_torch) for dtype in TYPES},
            **{f"lm, compiled, {dtype}": (partial(ours, run, config, dtype, given.threads), {})
               for dtype in TYPES if dtype != "bfloat16"},
            **{f"Hugging Face, {dtype}": (partial(theirs, elsewhere, config, dtype, given.threads), {})
               for dtype in TYPES if dtype != "int8"},
        }  # fmt: skip
        for name, (work, environment) in systems.items():
            side = Side(answer, work, environment=environment)
            found = side.ask("measure")
            side.end()
            end, peak = (f"{found[of] / 1e6:5.0f} MB ({found[of] / found['needed']:.2f})" for of in ("end", "peak"))
            print(
                f"{name:24} needed {found['needed'] / 1e6:4.0f} MB, at the end {end}, at most {peak}, "
                f"before {found['before'] / 1e6:4.0f} MB", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
