"""Greedy generation by us and by others with the same random weights: each in a process of its own, interleaved.

    python -m tests.benchmarks.generation_comparison [12m gpt2 small] [--rows 1] [--threads 2] [--rounds 7]
        [--tokens 200]

Ours: torch's products in float32, and the step of `lm compile` with weights in float32 and in 8 bits. Others: Hugging
Face's generate in float32 and bfloat16, CTranslate2 in float32 and int8, llama.cpp in Q8_0; what is not installed, or
has no such model, is left out. `12m` is a GPT-2 shape of 6 layers, 384 wide, with a vocabulary of 4,096.

Prints the median tokens/s of each, after a prompt of 32 tokens, which is read in the time; the median over
rounds of how many times as fast it is as Hugging Face's faster type; and how many bytes its process holds, after the
rounds, more than before it loaded its model, packages aside. With one thread seconds are those of the processor.
Systems that share a process slow each other down, for each has threads of its own, which spin while they wait for work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from lm.checkpoint import load_model, save_checkpoint
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run import RunConfig
from lm.decoding.sampler import Sampler
from lm.engine import selection
from lm.engine.compiled.build import compile_decode_step
from lm.errors import LMError
from lm.hardware import select_inference_hardware
from lm.interop.ctranslate2.exporting import export_ctranslate2 as to_ctranslate2
from lm.interop.gguf.exporting import export_gguf as to_gguf
from lm.interop.hugging_face.exporting import export_hugging_face as to_hugging_face
from lm.model.transformer import DecoderOnly, build_model
from lm.run_folder import TrainingState
from tests.benchmarks.generation_throughput import PROMPT, run_ours, run_theirs
from tests.cli.small_runs import make_tokenizer

Work = Callable[[], object]
_BASELINE = "Hugging Face"
_PAUSE = 0.3
"""Seconds after which the threads of the one before no longer spin."""
SHAPES = {
    "12m": ModelConfig(
        vocab_size=4096, context_length=256, d_model=384, n_layers=6, n_heads=6, positions="learned", norm="layernorm",
        activation="gelu-tanh", bias=True,
    ),
    "gpt2": build_run_config("gpt2", {"model": {"context_length": 256}}).model,
    "small": build_run_config("small").model,
    "portable-small": build_run_config("portable-small").model,
}  # fmt: skip


def random_run(folder: Path, config: ModelConfig) -> Path:
    """A run with random weights; its tokenizer has fewer tokens than the model."""
    run = RunConfig(model=config)
    save_checkpoint(
        folder, config=run, tokenizer=make_tokenizer("bpe"), model=build_model(config).state_dict(), optimizer={},
        state=TrainingState(), is_best=True,
    )  # fmt: skip
    return folder


def ours(run: Path, dtype: str, *, rows: int, tokens: int, by_step: bool) -> Work:
    model = load_model(run, select_inference_hardware(HardwareConfig("cpu", dtype, torch.get_num_threads()))).model
    assert isinstance(model, DecoderOnly)
    selection._LOADING_SECONDS = 0.0 if by_step else 1e9
    return partial(run_ours, model, rows, tokens, Sampler(greedy=True))


def hugging_face(folder: Path, dtype: torch.dtype, *, rows: int, tokens: int) -> Work:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=True).eval()
    return torch.inference_mode()(lambda: run_theirs(model, rows, tokens))


def ctranslate2(folder: Path, kind: str, *, rows: int, tokens: int) -> Work:
    import ctranslate2 as package

    generator = package.Generator(str(folder), compute_type=kind, intra_threads=torch.get_num_threads())
    tokenizer = make_tokenizer("bpe")
    prompt = [tokenizer.token(index) for index in PROMPT]
    return lambda: generator.generate_batch(
        [prompt] * rows, max_length=tokens, min_length=tokens, include_prompt_in_result=False, end_token=[]
    )


def llama_cpp(file: Path, *, tokens: int) -> Work:
    import llama_cpp as package

    threads = torch.get_num_threads()
    model = package.Llama(str(file), n_ctx=256, n_threads=threads, n_threads_batch=threads, verbose=False)

    def work() -> list[int]:
        model.reset()
        model.eval(PROMPT)
        chosen: list[int] = []
        for _ in range(tokens):
            logits = np.ctypeslib.as_array(package.llama_get_logits_ith(model.ctx, -1), shape=(model.n_vocab(),))
            chosen.append(int(logits.argmax()))
            model.eval([chosen[-1]])
        return chosen

    return work


def systems(folder: Path, config: ModelConfig, *, rows: int, tokens: int) -> dict[str, Callable[[], Work]]:
    """What is compared; a model is loaded when it is called, in the process that it is called in."""
    run = random_run(folder / "run", config)
    sizes = {"rows": rows, "tokens": tokens}
    found: dict[str, Callable[[], Work]] = {
        "ours, compiled, int8": partial(ours, run, "int8", by_step=True, **sizes),
        "ours, compiled, float32": partial(ours, run, "float32", by_step=True, **sizes),
        "ours, torch, float32": partial(ours, run, "float32", by_step=False, **sizes),
        "ours, torch, bfloat16": partial(ours, run, "bfloat16", by_step=False, **sizes),
    }
    to_hugging_face(run, folder / "hf")
    for dtype in (torch.float32, torch.bfloat16):
        found[f"{_BASELINE}, {str(dtype)[6:]}"] = partial(hugging_face, folder / "hf", dtype, **sizes)
    with suppress(ImportError, LMError):
        for kind in ("float32", "int8"):
            to_ctranslate2(run, folder / kind, number_type=kind)
            found[f"CTranslate2, {kind}"] = partial(ctranslate2, folder / kind, kind, **sizes)
    with suppress(ImportError, LMError):
        to_gguf(run, folder / "model.gguf", number_type="q8_0")
        if rows == 1:
            found["llama.cpp, Q8_0"] = partial(llama_cpp, folder / "model.gguf", tokens=tokens)
    return found


class Worker:
    """A system in a process of its own, which works when it is told to and sleeps else."""

    def __init__(self, load: Callable[[], Work], *, threads: int) -> None:
        """Load it and let it work once; ImportError if its package is not there."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(load, threads, theirs), daemon=True)
        self._process.start()
        if not self._connection.recv():
            self.end()
            raise ImportError

    def seconds(self) -> float:
        """What its work takes, once more."""
        self._connection.send(True)
        taken: float = self._connection.recv()
        return taken

    def end(self) -> int:
        """End the process; the bytes that it held for its model are returned."""
        self._connection.send(False)
        held: int = self._connection.recv()
        self._process.join()
        return held


def _serve(load: Callable[[], Work], threads: int, connection: Connection) -> None:
    torch.set_num_threads(threads)
    before, clock = _resident(), time.process_time if threads == 1 else time.perf_counter
    try:
        work = load()
        work()
        connection.send(True)
    except ImportError:
        connection.send(False)
    while connection.recv():
        began = clock()
        work()
        connection.send(clock() - began)
    connection.send(_resident() - before)


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def started(found: Mapping[str, Callable[[], Work]], *, threads: int) -> dict[str, Worker]:
    workers = {}
    for name, load in found.items():
        with suppress(ImportError):
            workers[name] = Worker(load, threads=threads)
    return workers


def main() -> None:
    """A table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["12m"], metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    for name, default in (("rows", 1), ("threads", 2), ("rounds", 7), ("tokens", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    compile_decode_step()
    for shape in given.shapes:
        with tempfile.TemporaryDirectory() as folder:
            found = systems(Path(folder), SHAPES[shape], rows=given.rows, tokens=given.tokens)
            workers = started(found, threads=given.threads)
            rounds = []
            for _ in range(given.rounds):
                rounds.append({})
                for name, worker in workers.items():
                    time.sleep(_PAUSE)
                    rounds[-1][name] = worker.seconds()
            held = {name: worker.end() for name, worker in workers.items()}
        print(f"\n{shape}, {given.rows} rows of {given.tokens} tokens, {given.threads} threads")
        for name in workers:
            ratio = statistics.median(
                min(seconds for system, seconds in taken.items() if system.startswith(_BASELINE)) / taken[name]
                for taken in rounds
            )
            rate = given.rows * given.tokens / statistics.median(taken[name] for taken in rounds)
            print(f"{name:<26} {rate:>8.0f} tokens/s {ratio:>6.2f} {held[name] / 1e6:>8.0f} MB", flush=True)


if __name__ == "__main__":
    main()
