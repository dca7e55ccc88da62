"""The cases: lines of `lm` commands in the words of the base commit, and the texts they read.

A line is a command of `lm`, `copy SOURCE TARGET`, or a probe with its path (`probes.py`); "< FILE" at the end is stdin.
Every setting that a machine could choose is given, held-out files too. Values stand behind their flag, positional
arguments before all flags.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CORPORA = Path(__file__).parents[2] / "corpora"


@dataclass(frozen=True)
class Case:
    """Lines that run one after another in a new folder, with the texts in `text/`.

    Attributes:
        tolerance: relative, of floats; 0: they are equal bit by bit.
        is_compiled: whether the kernels are compiled.
    """

    name: str
    lines: tuple[str, ...]
    tolerance: float = 0.0
    is_compiled: bool = False


_CPU = "--device cpu --dtype float32 --threads 1"
_LENGTH = "--steps 6 --warmup-steps 2 --evaluate-every 3 --seed 5"
_STORIES = f"train text/stories.txt --validation text/held-out.txt -o run {_CPU} {_LENGTH}"
_MODEL = "--d-model 32 --n-layers 2 --context 32 --batch-size 4"
_TEXT = f"{_STORIES} {_MODEL} --n-heads 2 --vocab-size 300"
_HELD_OUT = "--validation-source text/test.en --validation-target text/test.de"
_PAIRS = f"train --source text/train.en --target text/train.de {_HELD_OUT} -o run {_CPU} {_LENGTH} --best-by loss"
_SHAPE = "--d-model 32 --n-layers 2 --vocab-size 400 --context 64 --batch-tokens 300"
_TWO = f"{_PAIRS} {_SHAPE} --n-encoder-layers 2 --n-heads 2 --d-ff 64"
_RATE = "--learning-rate 3e-3"

TEXTS: Mapping[str, str] = {
    "gpt2": f"--preset gpt2 {_RATE}",
    "llama": f"--preset llama-15m {_RATE} --d-ff 64",
    "grouped": f"--preset llama-15m {_RATE} --d-ff 64 --n-heads 4 --n-kv-heads 2",
    "portable": "--preset portable-tiny",
    "sinusoidal": "--preset tiny --positions sinusoidal --bias --no-qk-norm",
    "sinusoidal-half": f"--preset tiny --positions sinusoidal-half --optimizer adamw {_RATE}",
    "alibi": "--preset tiny --positions alibi --norm rmsnorm",
    "relative": f"--preset gpt2 --positions relative --max-distance 8 {_RATE}",
    "t5": f"--preset gpt2 --positions t5 --max-distance 40 {_RATE}",
    "no-positions": "--preset tiny --positions none --activation relu2 --d-head 8 --init-std 0.2 --no-zero-init",
    "neox": "--preset tiny --parallel-residual --rotary-fraction 0.25 --bias --attention-bias all",
    "post-norm": f"--preset gpt2 --norm-position post {_RATE} --schedule inverse-sqrt",
    "rope-linear": "--preset tiny --rope-scaling linear --rope-factor 2 --rope-base 5000 --activation relu",
    "rope-llama3": "--preset tiny --rope-scaling llama3 --rope-factor 4 --rope-context 16",
    "rope-yarn": "--preset tiny --rope-scaling yarn --rope-factor 4 --rope-context 16",
    "untied": "--preset tiny --activation silu --attention-bias inputs --no-tie-embeddings --output-bias",
    "shortcut": "--preset tiny --activation gelu-tanh --scale-embeddings --softcap 15",
    "regularised": "--preset tiny --dropout 0.2 --attention-dropout 0.1 --label-smoothing 0.1 --ema 0.9",
    "r-drop": "--preset tiny --dropout 0.2 --r-drop 0.5 --schedule wsd --decay-fraction 0.5",
    "accumulated": "--preset tiny --micro-batch-size 2 --clip 0.5 --schedule cosine",
    "recomputed": "--preset tiny --checkpoint-activations --dropout 0.1 --schedule constant --no-value-residual",
    "plateau": f"--preset tiny --decay-patience 1 --patience 4 --steps 40 --schedule wsd {_RATE}",
    "bfloat16": "--preset tiny --dtype bfloat16",
    "window": "--preset tiny --attention window --attention-window 8",
    "bigbird": "--preset tiny --attention bigbird --attention-block 4 --global-blocks 1 --random-blocks 1",
    "compressed": f"--preset t-dmca {_RATE} --attention-block 8 --attention-stride 2 --d-ff 64",
    "experts": "--preset tiny --experts 4 --experts-per-token 2 --expert-capacity 1.25 --gate-noise 1",
    "experts-every": "--preset tiny --experts 3 --expert-every 2 --expert-balance 0.05 --activation swiglu",
}
"""Models of text, each trained, sampled from and scored."""
_MASKED: Mapping[str, str] = {
    "masked": "--preset tiny --objective masked",
    "bert": f"--preset bert-base {_RATE} --token-types 2 --masking-rate 0.3",
    "linformer": "--preset tiny --objective masked --attention linformer --attention-rank 8",
    "bigbird": "--preset tiny --objective masked --attention bigbird --attention-block 4",
}
_TRANSLATORS: Mapping[str, str] = {
    "translation": f"{_TWO} --preset translation-tiny",
    "transformer-base": f"{_TWO} --preset transformer-base {_RATE} --positions sinusoidal-half --output-bias",
    "transformer-relative": f"{_TWO} --preset transformer-base --positions relative {_RATE}",
    "t5": f"{_TWO} --preset translation-tiny --positions t5 --max-distance 40 --norm rmsnorm",
    "alibi": f"{_TWO} --preset translation-tiny --positions alibi --activation swiglu",
    "learned": f"{_TWO} --preset translation-tiny --positions learned --context 96 --no-tie-embeddings",
    "switch": f"{_TWO} --preset switch-base {_RATE} --expert-every 2 --experts 4",
    "linformer": f"{_TWO} --preset translation-tiny --attention linformer --attention-rank 8 --context 160",
    "window": f"{_TWO} --preset translation-tiny --attention window --attention-window 4",
    "bpe-dropout": f"{_TWO} --preset translation-tiny --bpe-dropout 0.2 --bpe-dropout-until 0.7 --dropout 0.2",
    "separate": f"{_TWO} --preset translation-tiny --separate-vocabularies",
    "bidirectional": f"{_TWO} --preset translation-tiny --bidirectional",
    "by-bleu": f"{_TWO} --preset translation-tiny --best-by bleu --bleu-sentences 4",
    "filtered": f"{_TWO} --preset translation-tiny --max-length 40 --max-ratio 1.3",
    "one-stack": f"{_PAIRS} {_SHAPE} --preset translation-tiny --n-heads 2 --decoder-only",
    "lstm": f"{_PAIRS} {_SHAPE} --preset seq2seq-tiny --n-layers 1",
    "gru": f"{_PAIRS} {_SHAPE} --preset seq2seq {_RATE} --n-layers 1 --recurrent-attention general",
    "no-attention": f"{_PAIRS} {_SHAPE} --preset seq2seq-tiny --n-layers 1 --recurrent-attention none",
}
_SYNTAX: Mapping[str, str] = {
    "depth": "--preset translation-tiny --syntax depth",
    "distance": "--preset translation-tiny --syntax distance --max-distance 4",
    "both": f"--preset transformer-base --positions relative {_RATE} --syntax both",
}
_SAMPLING = (
    "--greedy", "--temperature 1.3 -n 3", "--top-k 7 -n 2", "--top-p 0.7 -n 2", "--min-p 0.3 -n 2", "--typical 0.6",
    "--top-k 40 --top-p 0.9 --min-p 0.02 --typical 0.95 -n 7 --batch-size 3",
    "--repetition-penalty 1.3 --presence-penalty 0.4 --frequency-penalty 0.2 -n 2", "--greedy --no-repeat-ngram 2",
    "--logit-bias ' the=-2' --logit-bias e=3 --logit-bias ' a=-inf' -n 2",
    "--stop the --stop '. ' --max-tokens 60 -n 3",
    "--no-cache -n 2", "--top-alternatives 3", "--max-tokens 90 --min-tokens 50 --ignore-eos -n 3", "--token-healing",
)  # fmt: skip
_DECODING = (
    "run 'The road' --beam 4 -n 4", "run 'The road' --beam 3 --max-tokens 60 --length-penalty 0.5",
    "run 'The road' --draft draft --max-tokens 40 -n 2 --seed 7",
    "run 'The road' --draft draft --greedy --max-tokens 60",
    "run 'The road' --draft prompt --greedy --max-tokens 60 --repetition-penalty 1.05",
    "run 'The road' --draft prompt --top-p 0.5 --max-tokens 40 --seed 7", "run '' --max-tokens 24 -n 2 --seed 7",
    "run --prompts text/prompts.txt --max-tokens 24 --batch-size 3 -n 2 --seed 7",
    "run --prompts text/prompts.txt --max-tokens 70 --batch-size 2 --seed 7", "run --prompts text/prompts.txt --greedy",
)  # fmt: skip
_SCORES = (
    "--per-token", "--stride 3", "--context 16", "--context 48 --stride 24", "--stride 32 --batch-size 3",
    "--versus draft", "text/folder text/stories.jsonl",
)  # fmt: skip
_TRANSLATING = (
    "--beam 4 --n-best 3", "--beam 3 --length-penalty 0.6", "--beam 3 --batch-tokens 40",
    "--beam 3 --no-repeat-ngram 2 --repetition-penalty 1.2 --logit-bias e=1", "--beam 3 --n-best 2 --ensemble draft",
)  # fmt: skip
_CORPORA: Mapping[str, str] = {
    "split": "text/stories.txt", "folder": "text/folder", "jsonl": "text/stories.jsonl", "csv": "text/stories.csv",
    "byte": "text/stories.txt --kind byte", "char": "text/stories.txt --kind char",
    "special": "text/stories.txt --special '<a>' --merges characters",
    "separator": "text/train.en --separator ''", "questions": "text/questions.jsonl --supervised",
    "labels": "text/labels.jsonl --supervised", "conversations": "text/conversations.jsonl",
    "instructions": "text/instructions.jsonl --supervised",
}  # fmt: skip


def cases() -> list[Case]:
    """Return all cases."""
    return [*_texts(), *_rows(), *_masked(), *_translation(), *_continued(), *_decoding(), *_engines(), *_tools()]


def _generate(run: str = "run", hardware: str = _CPU) -> tuple[str, ...]:
    """Return lines that sample from a run in each way once."""
    start, prompts = f"generate {run} 'The road' --json {hardware}", f"generate {run} --prompts text/prompts.txt"
    return (
        f"{start} --greedy --max-tokens 24", f"{start} --seed 7 -n 3 --max-tokens 48",
        f"{start} --beam 3 -n 2 --max-tokens 24", f"{prompts} --seed 2 --max-tokens 40 --json {hardware}",
    )  # fmt: skip


def _perplexity(files: str = "text/held-out.txt") -> str:
    return f"perplexity run {files} --json {_CPU}"


def _texts() -> Iterator[Case]:
    for name, settings in TEXTS.items():
        yield Case(f"text/{name}", (f"{_TEXT} {settings}", "results run", *_generate()[1::2], _perplexity()))
    kinds = {f"text/{kind}": f"--preset tiny --n-heads 2 --kind {kind}" for kind in ("byte", "char")}
    recurrent = {
        f"recurrent/{name}": f"--preset tiny --vocab-size 300 --architecture {name} --dropout 0.1"
        for name in ("lstm", "gru")
    }
    for name, settings in (kinds | recurrent).items():
        yield Case(name, (f"{_STORIES} {_MODEL} {settings}", "results run", *_generate()[1::2], _perplexity()))
    for name, settings in {"processes": "--processes 2", "shards": "--processes 2 --shard"}.items():
        yield Case(f"text/{name}", (f"{_TEXT} --preset tiny {settings}", "losses run", "weights run"), tolerance=1e-5)


def _rows() -> Iterator[Case]:
    """Examples, labels and conversations."""
    for name, flags in {"questions": "--supervised", "labels": "--supervised", "conversations": ""}.items():
        train = f"{_TEXT} --preset tiny --context 64 {flags}".replace("stories.txt", f"{name}.jsonl")
        train = train.replace("held-out.txt", f"test-{name}.jsonl")
        use = ("chat run --seed 3 --max-tokens 20 --device cpu --threads 1 < text/prompts.txt",) if not flags else ()
        use += (f"classify run text/test.en --json {_CPU}",) if name == "labels" else ()
        yield Case(f"rows/{name}", (train, "results run", _perplexity(f"text/test-{name}.jsonl"), _generate()[1], *use))


def _masked() -> Iterator[Case]:
    for name, settings in _MASKED.items():
        yield Case(
            f"masked/{name}",
            (
                f"{_TEXT} {settings}", "results run", _perplexity(),
                f"fill run 'The [MASK] saw the [MASK] fox.' --json --top-k 4 {_CPU}",
                *((f"attention run 'The road' --json {_CPU}",) if name != "linformer" else ()),
            ),
        )  # fmt: skip
    train = "train text/labels.jsonl --validation text/test-labels.jsonl --supervised --from run -o classifier"
    classify = ("--json", "--batch-size 3 --json", "--json --dtype int8")
    yield Case(
        "masked/classifier",
        (
            f"{_TEXT} --preset tiny --objective masked", f"{train} {_CPU} {_LENGTH} --batch-size 4 --optimizer muon",
            "results classifier", *(f"classify classifier text/test.en {_CPU} {flags}" for flags in classify),
            f"evaluate classifier text/test-labels.jsonl --json {_CPU}",
        ),
    )  # fmt: skip


def _translate(hardware: str = _CPU, flags: str = "") -> tuple[str, ...]:
    ways = ("--beam 1", "--beam 3 --n-best 2")
    return tuple(f"translate run text/test.en --json {hardware} {flags} {way}" for way in ways)


def _translation() -> Iterator[Case]:
    pairs = "--source text/test.en --target text/test.de"
    for name, train in _TRANSLATORS.items():
        to = "--to de" if name == "bidirectional" else ""
        lines = (train, "results run", *_translate(flags=to), _perplexity(f"{pairs} {to}"))
        yield Case(f"translation/{name}", lines)
    heads = "--heads text/train.heads --validation-heads text/test.heads"
    for name, settings in _SYNTAX.items():
        lines = _translate(flags="--heads text/test.heads")
        score = _perplexity(f"{pairs} --heads text/test.heads")
        yield Case(f"syntax/{name}", (f"{_TWO} {heads} {settings}", "results run", *lines, score))
    for name, flags in {"tsv": "", "tagged": "--source-language en --target-language de --bidirectional"}.items():
        file = "text/pairs.tsv" if name == "tsv" else "text/pairs.jsonl"
        train = f"train --pairs {file} {_TWO.partition(_HELD_OUT)[2]} --preset translation-tiny {flags}"
        yield Case(f"translation/{name}", (train, "results run"))
    train = f"{_TWO} --preset translation-tiny"
    adapters = f"{train} --from run --lora 2 {_RATE}".replace("-o run", "-o draft").replace(
        _SHAPE, "--batch-tokens 300"
    )
    adapters = adapters.replace(" --n-encoder-layers 2 --n-heads 2 --d-ff 64 --preset translation-tiny", "")
    yield Case(
        "translation/decoding",
        (
            f"{train} --steps 60 --learning-rate 0.02 --evaluate-every 30", adapters, "weights draft",
            *(f"translate run text/test.en --json {_CPU} {flags}" for flags in _TRANSLATING),
            f"translate run text/test.en {_CPU} --beam 2",
            f"evaluate run {pairs} --beam 2 --json --resamples 20 {_CPU}",
            f"attention run 'A dog runs.' --target 'Ein Hund rennt.' --json {_CPU}",
            f"attention run 'A dog runs.' --json {_CPU}",
        ),
    )  # fmt: skip


def _continued() -> Iterator[Case]:
    """Resumed runs, and runs that start from another."""
    resumed = {
        "text": f"{_TEXT} --preset tiny --dropout 0.2 --ema 0.9 --micro-batch-size 2",
        "adamw": f"{_TEXT} --preset gpt2 {_RATE}", "experts": f"{_TEXT} {TEXTS['experts']}",
        "masked": f"{_TEXT} {_MASKED['masked']}", "bpe-dropout": _TRANSLATORS["bpe-dropout"],
        "one-stack": _TRANSLATORS["one-stack"], "lstm": _TRANSLATORS["lstm"],
    }  # fmt: skip
    for name, train in resumed.items():
        branch = ("copy run branch", "train --resume branch/checkpoints/step-3", "losses branch", "weights branch")
        yield Case(f"resume/{name}", (train, *branch, "train --resume run --steps 9", "losses run", "weights run"))
    start = f"train text/more.txt --validation text/held-out.txt --from run -o tuned {_CPU} {_LENGTH} --batch-size 4"
    tuned = {
        "full": (f"{_TEXT} --preset tiny", f"{start} --optimizer muon {_RATE}"),
        "lora": (f"{_TEXT} --preset tiny", f"{start} --lora 4 --learning-rate 1e-2"),
        "lora-attention": (
            f"{_TEXT} --preset gpt2 {_RATE}",
            f"{start} --lora 2 --lora-on attention --lora-alpha 8 --lora-dropout 0.1 --learning-rate 1e-2",
        ),
    }
    for name, lines in tuned.items():
        merged = () if name == "full" else ("merge tuned -o merged", "weights merged")
        resumed_run = ("train --resume tuned --steps 9", "losses tuned", "weights tuned")
        yield Case(f"from/{name}", (*lines, "results tuned", *_generate("tuned"), *merged, *resumed_run))
    average = ("average run --last 2 -o averaged", "weights averaged")
    yield Case("tools/average", (f"{_TEXT} --preset tiny", *average))


def _decoding() -> Iterator[Case]:
    train = f"{_TEXT} --preset tiny --steps 60 --learning-rate 0.02 --evaluate-every 30"
    runs = (train, f"{_TEXT} --preset tiny".replace("-o run", "-o draft"))
    sampled = (f"generate run 'The road' --json {_CPU} --max-tokens 24 {flags}" for flags in _SAMPLING)
    yield Case(
        "decoding/sampling",
        (
            train, *(line if "--greedy" in line else f"{line} --seed 7" for line in sampled),
            f"generate run 'The road' {_CPU} --seed 3 --max-tokens 30 -n 3 --no-echo",
            f"generate run {_CPU} --seed 3 --max-tokens 30 < text/three.en",
            f"generate run -i {_CPU} --seed 3 --max-tokens 20 < text/prompts.txt",
        ),
    )  # fmt: skip
    yield Case("decoding/ways", (*runs, *(f"generate {line} --json {_CPU}" for line in _DECODING)))
    scores = (f"perplexity run text/held-out.txt {flags} {_CPU}" for flags in _SCORES)
    scores = (line if "--per-token" in line else f"{line} --json" for line in scores)
    yield Case(
        "decoding/scores", (*runs, *scores, f"perplexity run --json {_CPU}", f"attention run 'The road' --json {_CPU}")
    )


def _engines() -> Iterator[Case]:
    """Each engine and dtype of inference."""
    for dtype in ("float32", "int8", "bfloat16", "float16"):
        hardware = _CPU.replace("float32", dtype)
        for name in ("gpt2", "llama", "alibi", "window", "experts", "neox"):
            if name in {"gpt2", "llama"} or dtype == "int8":
                lines = (f"{_TEXT} {TEXTS[name]}", *_generate(hardware=hardware), _perplexity().replace(_CPU, hardware))
                yield Case(f"pytorch/{dtype}-{name}", lines)
        yield Case(f"pytorch/{dtype}-translation", (_TRANSLATORS["translation"], *_translate(hardware)))
    compiled = ("gpt2", "llama", "grouped", "neox", "alibi", "t5", "window", "relative", "sinusoidal", "experts")
    for dtype in ("float32", "int8"):
        hardware = _CPU.replace("float32", dtype)
        speculative = f"generate run 'The road' --draft prompt --greedy --max-tokens 40 --json {hardware}"
        for name in compiled:
            lines = (f"{_TEXT} {TEXTS[name]}", *_generate(hardware=hardware), speculative)
            yield Case(f"compiled/{dtype}-{name}", lines, is_compiled=True)
        for name in ("translation", "one-stack"):
            lines = (_TRANSLATORS[name], *_translate(hardware))
            yield Case(f"compiled/{dtype}-{name}", lines, is_compiled=True)


def _tools() -> Iterator[Case]:
    for name, flags in _CORPORA.items():
        size = "" if "--kind" in flags else "--vocab-size 300"
        yield Case(f"prepare/{name}", (f"prepare {flags} {size} -o tokens --processes 1", "tokens tokens"))
    part = "prepare text/stories.jsonl --tokenizer tokenizer.json --processes 1"
    yield Case(
        "prepare/parts",
        (
            "tokenizer train text/stories.txt --vocab-size 300 -o tokenizer.json",
            f"{part} -o tokens", "tokens tokens",
            "tokenizer encode tokenizer.json 'The road — was steep <|endoftext|> Über' --json",
            "tokenizer encode tokenizer.json 'a<|endoftext|>b' --parse-special",
            "tokenizer decode tokenizer.json '40 41 42 299'",
        ),
    )  # fmt: skip
    for name in ("gpt2", "llama", "portable"):
        to = {"huggingface": "exported", "gguf": "exported.gguf"}
        lines = (f"export run --to {kind} -o {out}" for kind, out in to.items())
        probes = (f"exported {out}" for out in to.values())
        back = ("import exported -o imported", "weights imported", *_generate("imported"))
        yield Case(f"export/{name}", (f"{_TEXT} {TEXTS[name]}", *lines, *probes, *back))
    exports = {
        "bert": (f"{_TEXT} {_MASKED['bert']}", "huggingface"),
        "transformer-base": (_TRANSLATORS["transformer-base"], "huggingface"),
        "ctranslate2": (f"{_TWO} --preset transformer-base {_RATE}", "ctranslate2"),
    }
    for name, (train, kind) in exports.items():
        yield Case(f"export/{name}", (train, f"export run --to {kind} -o exported", "exported exported"))


def write_texts(folder: Path) -> None:
    """Write what the cases read, made from the texts in `corpora/`; files that are there already keep their time."""
    stories = (CORPORA / "stories" / "train.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    held_out = (CORPORA / "stories" / "heldout.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    texts = {
        "stories.txt": "\n<|endoftext|>\n".join(stories[:20]), "more.txt": "\n<|endoftext|>\n".join(stories[20:30]),
        "held-out.txt": "\n<|endoftext|>\n".join(held_out[:3]),
        "stories.jsonl": _lines({"text": story} for story in stories[:120]),
        "stories.csv": "id,text\n" + "".join(f"{n},{_quoted(story)}\n" for n, story in enumerate(stories[:40])),
        "prompts.txt": "The road\nOne day\nIt was the best of days\nThe road\n", "prefixes.txt": "Der\n\nDie\n",
        **{f"folder/{n}.txt": story for n, story in enumerate(stories[:6])},
    }  # fmt: skip
    for name, count in {"train": 250, "test": 12}.items():
        part = "train" if name == "train" else "heldout"
        sides = (
            (CORPORA / "parallel" / f"{part}.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")
        )
        pairs = list(zip(*sides, strict=True))[:count]
        prefix = "" if name == "train" else "test-"
        texts |= {
            f"{name}.en": "".join(f"{source}\n" for source, _ in pairs),
            f"{name}.de": "".join(f"{target}\n" for _, target in pairs),
            f"{name}.heads": "".join(f"{_heads(len(source.split()))}\n" for source, _ in pairs),
            f"{prefix}pairs.tsv": "".join(f"{source}\t{target}\n" for source, target in pairs),
            f"{prefix}pairs.jsonl": _lines({"source": source, "target": target} for source, target in pairs),
            f"{prefix}questions.jsonl": _lines(
                {"prompt": f"{source}\n", "completion": " ".join(target.split()[:2])} for source, target in pairs
            ),
            f"{prefix}labels.jsonl": _lines(
                {"text": source, "label": "short" if len(source) < 40 else "long"} for source, _ in pairs
            ),
            f"{prefix}instructions.jsonl": _lines(
                {"instruction": "Translate.", "input": source, "output": target} for source, target in pairs
            ),
            f"{prefix}conversations.jsonl": _lines({"messages": _messages(n, pairs)} for n in range(count // 2)),
        }  # fmt: skip
    texts["three.en"] = "".join(texts["test.en"].splitlines(keepends=True)[:3])
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _messages(number: int, pairs: list[tuple[str, ...]]) -> list[dict[str, str]]:
    """Return a conversation of one or two turns, a third of them with a system prompt."""
    turns = pairs[2 * number : 2 * number + 1 + number % 2]
    system = [{"role": "system", "content": "Be brief."}] * (number % 3 == 0)
    return system + [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def _heads(words: int) -> str:
    """Return a tree in which the middle word is the root and each other depends on its neighbour towards the middle."""
    root = (words + 1) // 2
    return " ".join(str(0 if place == root else place + (1 if place < root else -1)) for place in range(1, words + 1))


def _lines(rows: Iterator[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
