"""Greedy generation by us and by others with the same random weights: systems take turns in one process.

    python -m tests.benchmarks.generation_peers [12m gpt2 small] [--rows 1] [--threads 2] [--rounds 7] [--tokens 200]

Ours: torch's products in float32, and the step of `lm compile` with weights in float32 and in 8 bits. Others: Hugging
Face's generate in float32 and bfloat16, CTranslate2 in float32 and int8, llama.cpp in Q8_0; what is not installed, or
has no such model, is left out. `12m` is a GPT-2 shape of 6 layers, 384 wide, with a vocabulary of 4,096.

Prints the median tokens a second of each, after a prompt of 32 tokens, which is read in the time; and the median over
rounds of its seconds in relation to those of our compiled step in 8 bits. Each system has threads of its own, which
spin while they wait for work, so that several in one process make all of them slower than each is alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from lm.checkpoint import load_model, save_checkpoint
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.presets import resolve
from lm.config.run import RunConfig
from lm.decoding.sampling import Sampler
from lm.errors import LMError
from lm.hardware import Hardware, inference_hardware, timed
from lm.interop.ctranslate2.exporting import export as to_ctranslate2
from lm.interop.gguf.exporting import export as to_gguf
from lm.interop.hugging_face.exporting import export as to_hugging_face
from lm.model.transformer import DecoderOnly, build_model
from lm.native import choice
from lm.native.compiling import compile_step
from lm.run_folder import TrainingState
from tests.benchmarks.generation_throughput import PROMPT, run_ours, run_theirs
from tests.cli.small_runs import make_tokenizer

Work = Callable[[], object]
SHAPES = {
    "12m": ModelConfig(
        vocab_size=4096, context_length=256, d_model=384, n_layers=6, n_heads=6, positions="learned", norm="layernorm",
        activation="gelu-tanh", bias=True,
    ),
    "gpt2": resolve("gpt2", {"model": {"context_length": 256}}).model,
    "small": resolve("small").model,
    "portable-small": resolve("portable-small").model,
}  # fmt: skip


def random_run(folder: Path, config: ModelConfig) -> Path:
    """A run with random weights; its tokenizer has fewer tokens than the model."""
    run = RunConfig(model=config)
    save_checkpoint(
        folder, config=run, tokenizer=make_tokenizer("bpe"), model=build_model(config).state_dict(), optimizer={},
        state=TrainingState(), is_best=True,
    )  # fmt: skip
    return folder


def ours(run: Path, dtype: str, *, rows: int, tokens: int, compiled: bool) -> Work:
    model = load_model(run, inference_hardware(HardwareConfig("cpu", dtype, torch.get_num_threads()))).model
    assert isinstance(model, DecoderOnly)

    def work() -> object:
        choice._PLAIN_STEPS = 0 if compiled else 10**9
        choice._steps.clear()
        if not compiled:
            choice._decoders.pop(model, None)
        return run_ours(model, rows, tokens, Sampler(greedy=True))

    return work


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


def systems(folder: Path, config: ModelConfig, *, rows: int, tokens: int) -> dict[str, Work]:
    run = random_run(folder / "run", config)
    sizes = {"rows": rows, "tokens": tokens}
    found = {
        "ours, compiled, int8": ours(run, "int8", compiled=True, **sizes),
        "ours, compiled, float32": ours(run, "float32", compiled=True, **sizes),
        "ours, torch, float32": ours(run, "float32", compiled=False, **sizes),
    }
    to_hugging_face(run, folder / "hf")
    for dtype in (torch.float32, torch.bfloat16):
        found[f"Hugging Face, {str(dtype)[6:]}"] = hugging_face(folder / "hf", dtype, **sizes)
    with suppress(ImportError, LMError):
        for kind in ("float32", "int8"):
            to_ctranslate2(run, folder / kind, number_type=kind)
            found[f"CTranslate2, {kind}"] = ctranslate2(folder / kind, kind, **sizes)
    with suppress(ImportError, LMError):
        to_gguf(run, folder / "model.gguf", number_type="q8_0")
        if rows == 1:
            found["llama.cpp, Q8_0"] = llama_cpp(folder / "model.gguf", tokens=tokens)
    return found


def main() -> None:
    """A table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["12m"], metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    for name, default in (("rows", 1), ("threads", 2), ("rounds", 7), ("tokens", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    compile_step()
    cpu = Hardware("cpu", "float32", given.threads)
    for shape in given.shapes:
        with tempfile.TemporaryDirectory() as folder:
            works = systems(Path(folder), SHAPES[shape], rows=given.rows, tokens=given.tokens)
            for work in works.values():
                work()
            rounds = [[timed(work, cpu) for work in works.values()] for _ in range(given.rounds)]
        print(f"\n{shape}, {given.rows} rows of {given.tokens} tokens, {given.threads} threads")
        for name, seconds in zip(works, zip(*rounds, strict=True), strict=True):
            ratio = statistics.median(one / first[0] for one, first in zip(seconds, rounds, strict=True))
            rate = given.rows * given.tokens / statistics.median(seconds)
            print(f"{name:<26} {rate:>8.0f} tokens/s {ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
