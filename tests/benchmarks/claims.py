"""The claims of README.md and docs/ about speed: `make bench` measures each."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.comparison import KEPT_MEMORY, Claim, Requirement, System, Task

STORIES = Path(__file__).parents[2] / "corpora" / "stories" / "train.txt"
_TRANSFORMERS, _PEFT, _CTRANSLATE2 = Requirement("transformers"), Requirement("peft"), Requirement("ctranslate2")
_NUMBA, _GGUF = Requirement("numba"), Requirement("gguf")
_LLAMA_BENCH = Requirement("llama-bench", "program")
_NOT_COMPILED = {"LM_CACHE": "{folder}/empty-cache"}
"""A cache of its own, without what `lm compile` writes."""
_COMMANDS = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""No look for updates in the network; the warm-up round writes bytecode."""
_BLOCKS = {
    "small": "preset small, 12.2M", "0.8M": "GPT-2 blocks, 0.8M", "12.3M": "GPT-2 blocks, 12.3M", "124M": "GPT-2, 124M",
    "135M": "Llama blocks (SmolLM), 135M",
}  # fmt: skip
_ALL_EXPORTS = ("hugging-face", "ctranslate2-float32", "ctranslate2-int8", "gguf-q8_0")


def all_claims(*, training_dtype: str, corpus: Path | None) -> list[Claim]:
    """Return all claims.

    Args:
        training_dtype: bfloat16, or float32 where the processor emulates bfloat16.
        corpus: tinyshakespeare; None if it is not there.
    """
    return [
        *_startup(),
        _generate(),
        *(_decode("12.3M", dtype, threads, tokens=128) for threads in (1, 2) for dtype in ("int8", "float32")),
        *(_decode(shape, dtype, 2, tokens=48) for shape in ("124M", "135M") for dtype in ("int8", "float32")),
        _batch("12.3M", "int8", tokens=64),
        _batch("124M", "int8", tokens=24),
        _prompts(),
        *(_prefill(shape, dtype) for shape in ("12.3M", "135M") for dtype in ("int8", training_dtype)),
        _train("0.8M", training_dtype, rows=12, length=64, rounds=20),
        _train("12.3M", training_dtype, rows=8, length=256, rounds=7),
        _train("124M", training_dtype, rows=1, length=512, rounds=5),
        _lora(training_dtype),
        _nanogpt(corpus),
        *(_perplexity(dtype) for dtype in dict.fromkeys(("float32", training_dtype))),
        *(_translate(dtype) for dtype in ("int8", "float32")),
        _prepare(),
    ]


def selected(claims: Sequence[Claim], names: Sequence[str]) -> list[Claim]:
    """Return the claims of some names, all if there are none; ValueError if a name is unknown."""
    known = dict.fromkeys(claim.name for claim in claims)
    for name in names:
        if name not in known:
            raise ValueError(f"no claim {name!r}; claims: {', '.join(known)}")
    return [claim for claim in claims if not names or claim.name in names]


def _generate() -> Claim:
    """Before `lm compile`, so decoding is PyTorch's. The baselines have GPT-2's blocks of the same layers and width."""
    tokens = 128
    return Claim(
        "generate", f"{_BLOCKS['small']}, before `lm compile`: {tokens} tokens",
        threads=2, amount=tokens, unit="tokens/s",
        setup=Task("models.prepare", {"shapes": {"small": (), "12.3M": _ALL_EXPORTS}}), rounds=7,
        systems=[
            System(
                "lm", "auto", Task("decoding.lm", {"shape": "small", "dtype": "auto", "tokens": tokens}),
                environment=_NOT_COMPILED,
            ),
            *_decoding_baselines("12.3M", "float32", tokens=tokens, rows=1),
            _llama_decoding("12.3M", tokens),
        ],
    )  # fmt: skip


def _decode(shape: str, dtype: str, threads: int, *, tokens: int) -> Claim:
    return _decoding("decode", shape, dtype, threads, tokens=tokens, rows=1)


def _batch(shape: str, dtype: str, *, tokens: int) -> Claim:
    return _decoding("batch", shape, dtype, 2, tokens=tokens, rows=16)


def _decoding(name: str, shape: str, dtype: str, threads: int, *, tokens: int, rows: int) -> Claim:
    """After `lm compile`."""
    arguments = {"shape": shape, "dtype": dtype, "tokens": tokens, "rows": rows, "compiled": True}
    texts = "" if rows == 1 else f"{rows} texts of "
    return Claim(
        name, f"{_BLOCKS[shape]}: {texts}{tokens} tokens", threads=threads, amount=rows * tokens, unit="tokens/s",
        setup=_setup(shape), rounds=5, gemm=dtype,
        systems=[
            System("lm", dtype, Task("decoding.lm", arguments), [_NUMBA]),
            *_decoding_baselines(shape, dtype, tokens=tokens, rows=rows),
            *([_llama_decoding(shape, tokens)] if rows == 1 and dtype == "int8" else []),
        ],
    )  # fmt: skip


def _decoding_baselines(shape: str, dtype: str, *, tokens: int, rows: int) -> Iterator[System]:
    arguments = {"shape": shape, "tokens": tokens, "rows": rows}
    for theirs in _hugging_face_dtypes(dtype):
        yield _hugging_face(theirs, Task("decoding.transformers", {**arguments, "dtype": theirs}))
    yield System("CTranslate2", dtype, Task("decoding.ctranslate2", {**arguments, "dtype": dtype}), [_CTRANSLATE2])


def _hugging_face_dtypes(dtype: str) -> Sequence[str]:
    """Hugging Face has no int8 for CPUs: int8 is compared with both of its dtypes."""
    return ("bfloat16", "float32") if dtype == "int8" else (dtype,)


def _llama_decoding(shape: str, tokens: int) -> System:
    task = Task("commands.llama_bench", {"shape": shape, "decoded": tokens})
    return System("llama-bench", "Q8_0", task, [_LLAMA_BENCH, _GGUF])


def _prefill(shape: str, dtype: str) -> Claim:
    tokens = 128
    arguments = {"shape": shape, "tokens": tokens}
    systems = [System("lm", dtype, Task("decoding.lm_prefill", {**arguments, "dtype": dtype}))]
    for theirs in _hugging_face_dtypes(dtype):
        task = Task("decoding.transformers_prefill", {**arguments, "dtype": theirs})
        systems.append(_hugging_face(theirs, task))
    if dtype == "int8":
        task = Task("commands.llama_bench", {"shape": shape, "prompt": tokens})
        systems.append(System("llama-bench", "Q8_0", task, [_LLAMA_BENCH, _GGUF]))
    title = f"{_BLOCKS[shape]}: a prompt of {tokens} tokens"
    return Claim(
        "prefill", title, systems, 2, amount=tokens, unit="tokens/s", setup=_setup(shape), rounds=7, gemm=dtype
    )


def _prompts() -> Claim:
    arguments = {"shape": "12.3M", "dtype": "float32", "prompts": 96}
    return Claim(
        "prompts", f"{_BLOCKS['12.3M']}: 96 prompts and continuations of different lengths", threads=2,
        setup=_setup("12.3M"), rounds=3, warm_up=0,
        systems=[
            System("lm, continuous batching", "float32", Task("batching.continuous", {**arguments, "rows": 64})),
            System("lm, batches of 16", "float32", Task("batching.fixed", {**arguments, "rows": 16})),
        ],
    )  # fmt: skip


def _train(shape: str, dtype: str, *, rows: int, length: int, rounds: int) -> Claim:
    arguments = {"shape": shape, "dtype": dtype, "rows": rows, "length": length}
    theirs = Task("training.transformers", arguments)
    return Claim(
        "train", f"{_BLOCKS[shape]}: optimizer step of {rows} x {length} tokens", threads=2, unit="ms", rounds=rounds,
        warm_up=2, gemm=dtype,
        systems=[
            System("lm", dtype, Task("training.lm", arguments)),
            _hugging_face(dtype, theirs),
            _keeping_memory(_hugging_face(dtype, theirs)),
        ],
    )  # fmt: skip


def _lora(dtype: str) -> Claim:
    arguments = {"shape": "135M", "dtype": dtype, "length": 2048}
    needs = [_TRANSFORMERS, _PEFT]
    autocast, converted = (Task("training.peft", {**arguments, "autocast": each}) for each in (True, False))
    baselines = [_keeping_memory(System("PEFT, autocast", dtype, autocast, needs))]
    if dtype != "float32":
        baselines.insert(0, System(f"PEFT, base in {dtype}", dtype, converted, needs))
    return Claim(
        "lora", f"{_BLOCKS['135M']}: LoRA step, rank 8, one sequence of 2,048 tokens", threads=2, rounds=3,
        setup=_setup("135M"), gemm=dtype,
        systems=[System("lm", dtype, Task("training.lm_lora", arguments)), *baselines],
    )  # fmt: skip


def _nanogpt(corpus: Path | None) -> Claim:
    rounds, text = 3, [Requirement("tinyshakespeare", "file", corpus)]
    return Claim(
        "nanogpt", "tinyshakespeare by character: training time to 1.886 nats/character, the end of nanoGPT's recipe",
        threads=2, rounds=rounds, warm_up=0, seconds=math.inf,
        systems=[
            System("lm", "auto", Task("commands.lm_train", {"corpus": str(corpus)}), text),
            System(
                "nanoGPT's recipe, own loop", "float32",
                Task("nanogpt.recipe", {"corpus": str(corpus), "parts": rounds}), text,
            ),
        ],
    )  # fmt: skip


def _perplexity(dtype: str) -> Claim:
    windows = 3
    arguments = {"shape": "124M", "dtype": dtype, "windows": windows}
    theirs = _hugging_face(dtype, Task("perplexity.transformers", arguments))
    return Claim(
        "perplexity", f"{_BLOCKS['124M']}: 2,048 tokens, context 1,024, stride 512", threads=2, amount=2048,
        unit="tokens/s", setup=_setup("124M"), rounds=3, gemm=dtype,
        systems=[System("lm", dtype, Task("perplexity.lm", arguments)), theirs, _keeping_memory(theirs)],
    )  # fmt: skip


def _translate(dtype: str) -> Claim:
    sentences = 200
    arguments = {"dtype": dtype, "sentences": sentences}
    flags = ("--preset", "translation", "--steps", "120", "--evaluate-every", "0")
    return Claim(
        "translate", f"preset translation: {sentences} sentences, beam 5", threads=2, amount=sentences,
        unit="sentences/s", setup=Task("translation.prepare", {"flags": flags}), rounds=5,
        systems=[
            System("lm", dtype, Task("translation.lm", arguments), [_NUMBA, _CTRANSLATE2]),
            System("CTranslate2", dtype, Task("translation.ctranslate2", arguments), [_CTRANSLATE2]),
        ],
    )  # fmt: skip


def _startup() -> Iterator[Claim]:
    def python(name: str, *arguments: str, needs: Sequence[Requirement] = (), dtype: str = "") -> System:
        return System(name, dtype, Task("commands.python", {"arguments": arguments}), needs, _COMMANDS)

    first = ("-m", "cli", "generate", "{folder}/124M-run", "a", "--max-tokens", "1", "--threads", "{threads}")
    load = {"shape": "124M", "dtype": "float32"}
    yield Claim(
        "startup", "lm --help, until it exits", threads=1, unit="ms", rounds=7,
        systems=[
            python("lm", "-m", "cli", "--help"),
            python("import torch", "-c", "import torch"),
            python("transformers --help", "-m", "transformers.cli.transformers", "--help", needs=[_TRANSFORMERS]),
        ],
    )  # fmt: skip
    yield Claim(
        "startup", f"{_BLOCKS['124M']}: load and generate a token, until it exits", threads=1, unit="ms", rounds=5,
        setup=_setup("124M"),
        systems=[
            python("lm", *first, "--dtype", "float32", dtype="float32"),
            python("Hugging Face", "-m", "tests.benchmarks.workloads.first_token", "{folder}/124M-hugging-face",
                   "{threads}", needs=[_TRANSFORMERS], dtype="float32"),
        ],
    )  # fmt: skip
    yield Claim(
        "startup", f"{_BLOCKS['124M']}: load the model", threads=1, unit="ms", rounds=5, setup=_setup("124M"),
        systems=[
            System("lm", "float32", Task("loading.lm", load)),
            _hugging_face("float32", Task("loading.transformers", load)),
        ],
    )  # fmt: skip


def _prepare() -> Claim:
    copies = 16
    environment = {"RAYON_NUM_THREADS": "2"}
    return Claim(
        "prepare", "BPE of 4,096 tokens: token shards of a text", threads=2, rounds=3, unit="MB/s",
        amount=copies * STORIES.stat().st_size / 1e6, setup=Task("tokenisation.prepare", {"copies": copies}),
        systems=[
            System("lm", "", Task("tokenisation.lm"), environment=environment),
            System("tokenizers, encode_batch alone", "", Task("tokenisation.encode_batch"), environment=environment),
        ],
    )  # fmt: skip


def _setup(shape: str) -> Task:
    return Task("models.prepare", {"shapes": {shape: _ALL_EXPORTS}, "compiled": True})


def _hugging_face(dtype: str, task: Task) -> System:
    return System("Hugging Face", dtype, task, [_TRANSFORMERS])


def _keeping_memory(system: System) -> System:
    """As `lm` does, the process keeps freed memory, which no user of Hugging Face gets without these variables."""
    return System(f"{system.name}, freed memory kept", system.dtype, system.task, system.needs, KEPT_MEMORY)
