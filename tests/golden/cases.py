"""What the golden comparison runs: cases of commands, each with all settings that a machine could otherwise choose.

A training case makes a run, which the base tree keeps: both trees resume, fine-tune, decode and score the base tree's
runs, so that a difference in training shows up in the training case alone, and existing runs must still load.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

HARDWARE = "--device cpu --dtype float32 --threads 1"
_ENGINES: Mapping[str, str] = {
    "compiled": HARDWARE,
    "int8": "--device cpu --dtype int8 --threads 1",
    "compiled-int8": "--device cpu --dtype int8 --threads 1",
    "bfloat16": "--device cpu --dtype bfloat16 --threads 1",
    "float16": "--device cpu --dtype float16 --threads 1",
}


@dataclass(frozen=True)
class Case:
    """Commands that run one after another in a folder of their own.

    Attributes:
        name: unique; its first part is a tag too.
        commands: of `lm`, in shell syntax. Paths under `text/` and `runs/` are the texts and the base tree's runs;
            `copy SOURCE TARGET` copies a folder. "< FILE" at the end names stdin.
        tags: that select the case.
        needs: cases whose runs are read; the run of train/NAME is runs/NAME.
        is_compiled: whether compiled code is loaded before the command, and so used from the first token on.
        is_process: whether each command is a process of its own, which cases of several processes need.
    """

    name: str
    commands: tuple[str, ...]
    tags: frozenset[str]
    needs: tuple[str, ...] = ()
    is_compiled: bool = False
    is_process: bool = False

    def matches(self, word: str) -> bool:
        """Whether a word selects this case: a tag, or a part of the name."""
        return word in self.tags or word in self.name


_SHAPE = "--d-model 32 --n-layers 2 --n-heads 2 --context 32 --vocab-size 300"
_LENGTH = "--steps 6 --batch-size 4 --warmup-steps 2 --evaluate-every 3 --seed 5 --keep 0 --json"
_PAIRS = "--source text/train.en --target text/train.de"
_TWO_SIDES = (
    "--d-model 32 --n-layers 2 --n-encoder-layers 2 --n-heads 2 --d-ff 64 --vocab-size 400 --context 64 "
    "--steps 6 --batch-tokens 300 --warmup-steps 2 --evaluate-every 3 --seed 5 --keep 0 --json --best-by loss"
)
_RECURRENT = _TWO_SIDES.replace("--n-layers 2 --n-encoder-layers 2 --n-heads 2 --d-ff 64", "--n-layers 1")

TEXT: Mapping[str, str] = {
    "gpt": "--preset tiny",
    "gpt-long": "--preset tiny --steps 60 --learning-rate 0.02",
    "gpt2": "--preset gpt2 --learning-rate 3e-3",
    "gpt1": "--preset gpt1 --learning-rate 3e-3 --steps 6",
    "llama": "--preset llama-15m --learning-rate 3e-3 --d-ff 64",
    "smollm": "--preset smollm-135m --learning-rate 3e-3 --d-ff 64 --n-heads 4 --n-kv-heads 2",
    "portable": "--preset portable-tiny",
    "nanogpt": "--preset nanogpt-cpu --learning-rate 3e-3",
    "sinusoidal": "--preset tiny --positions sinusoidal --bias --no-qk-norm",
    "sinusoidal-half": "--preset tiny --positions sinusoidal-half --optimizer adamw --learning-rate 3e-3",
    "alibi": "--preset tiny --positions alibi --norm rmsnorm",
    "relative": "--preset gpt2 --positions relative --max-distance 8 --learning-rate 3e-3",
    "t5": "--preset gpt2 --positions t5 --max-distance 40 --learning-rate 3e-3",
    "no-positions": "--preset tiny --positions none --activation relu2",
    "neox": "--preset tiny --parallel-residual --rotary-fraction 0.25 --bias --attention-bias all",
    "post-norm": "--preset gpt2 --norm-position post --learning-rate 3e-3 --schedule inverse-sqrt",
    "rope-linear": "--preset tiny --rope-scaling linear --rope-factor 2 --rope-base 5000",
    "rope-llama3": "--preset tiny --rope-scaling llama3 --rope-factor 4 --rope-context 16",
    "rope-yarn": "--preset tiny --rope-scaling yarn --rope-factor 4 --rope-context 16",
    "silu": "--preset tiny --activation silu --attention-bias inputs --no-tie-embeddings",
    "gelu-tanh": "--preset tiny --activation gelu-tanh --scale-embeddings --softcap 15 --embedding-shortcut",
    "relu": "--preset tiny --activation relu --no-zero-init --init-std 0.2 --output-bias --d-head 8",
    "dropout": "--preset tiny --dropout 0.2 --attention-dropout 0.1 --label-smoothing 0.1 --ema 0.9",
    "r-drop": "--preset tiny --dropout 0.2 --r-drop 0.5 --schedule wsd --decay-fraction 0.5",
    "accumulated": "--preset tiny --micro-batch-size 2 --batch-warmup 3 --clip 0.5 --schedule cosine",
    "recomputed": "--preset tiny --checkpoint-activations --dropout 0.1",
    "byte": "--preset tiny --kind byte --schedule constant --no-value-residual",
    "char": "--preset tiny --kind char --epochs 0.01",
    "window": "--preset tiny --attention window --attention-window 8",
    "bigbird": "--preset tiny --attention bigbird --attention-block 4 --global-blocks 1 --random-blocks 1",
    "compressed": "--preset t-dmca --learning-rate 3e-3 --attention-block 8 --attention-stride 2 --d-ff 64",
    "experts": "--preset tiny --experts 4 --experts-per-token 2 --expert-capacity 1.25 --gate-noise 1",
    "experts-every": "--preset tiny --experts 3 --expert-every 2 --expert-balance 0.05 --activation swiglu",
    "lstm": "--preset tiny --architecture lstm --dropout 0.1",
    "gru": "--preset tiny --architecture gru --no-tie-embeddings",
    "masked": "--preset tiny --objective masked",
    "bert": "--preset bert-base --learning-rate 3e-3 --token-types 2 --whole-words --masking-rate 0.3",
    "masked-linformer": "--preset tiny --objective masked --attention linformer --attention-rank 8",
    "masked-bigbird": "--preset tiny --objective masked --attention bigbird --attention-block 4",
    "masked-window": "--preset bert-base --learning-rate 3e-3 --attention window --attention-window 4",
    "bfloat16": "--preset tiny --dtype bfloat16",
}
"""Settings of runs trained on a text; without `--n-heads` the shape is that of `_SHAPE`."""

_NOT_RECURRENT = " --n-heads 2"

PAIRS: Mapping[str, str] = {
    "translation": "--preset translation-tiny",
    "translation-long": "--preset translation-tiny --steps 60 --learning-rate 0.02 --evaluate-every 30",
    "transformer-base": "--preset transformer-base --learning-rate 3e-3",
    "transformer-relative": "--preset transformer-relative --learning-rate 3e-3",
    "marian": "--preset transformer-base --learning-rate 3e-3 --positions sinusoidal-half --output-bias",
    "marian-swish": (
        "--preset transformer-base --learning-rate 3e-3 --positions sinusoidal-half --output-bias --activation silu"
    ),
    "translation-t5": "--preset translation-tiny --positions t5 --max-distance 40 --norm rmsnorm",
    "translation-alibi": "--preset translation-tiny --positions alibi --activation swiglu",
    "translation-learned": "--preset translation-tiny --positions learned --context 96 --no-tie-embeddings",
    "switch": "--preset switch-base --learning-rate 3e-3 --expert-every 2 --experts 4",
    "translation-linformer": "--preset translation-tiny --attention linformer --attention-rank 8 --context 160",
    "translation-bigbird": "--preset translation-tiny --attention bigbird --attention-block 4",
    "translation-window": "--preset translation-tiny --attention window --attention-window 4",
    "syntax-depth": "--preset translation-tiny --syntax depth --heads text/train.heads",
    "syntax-distance": "--preset translation-tiny --syntax distance --heads text/train.heads --max-distance 4",
    "syntax-both": "--preset transformer-relative --learning-rate 3e-3 --syntax both --heads text/train.heads",
    "bpe-dropout": "--preset translation-tiny --bpe-dropout 0.2 --bpe-dropout-until 0.7 --dropout 0.2",
    "separate": "--preset translation-tiny --separate-vocabularies",
    "bidirectional": "--preset translation-tiny --bidirectional",
    "by-bleu": "--preset translation-tiny --best-by bleu --bleu-sentences 4",
    "held-out-pairs": "--preset translation-tiny --validation-source text/test.en --validation-target text/test.de",
    "filtered": "--preset translation-tiny --max-length 14 --max-ratio 1.3 --batch-size 7",
}
DECODER_ONLY: Mapping[str, str] = {
    "one-stack": "--preset translation-tiny --source-loss 0.5",
    "one-stack-compressed": "--preset t-dmca --learning-rate 3e-3 --attention-block 8 --attention-stride 2",
    "one-stack-learned": "--preset translation-tiny --positions learned --context 160",
}
RECURRENT: Mapping[str, str] = {
    "lstm-additive": "--preset seq2seq-tiny",
    "lstm-none": "--preset seq2seq-tiny --recurrent-attention none",
    "gru-dot": "--preset seq2seq-tiny --architecture gru --recurrent-attention dot",
    "gru-general": "--preset seq2seq --learning-rate 3e-3 --recurrent-attention general",
}
EXAMPLES: Mapping[str, tuple[str, str]] = {
    "questions": ("text/train-questions.jsonl --supervised --preset tiny --context 64", ""),
    "labels": ("text/train-labels.jsonl --supervised --preset tiny --context 48", ""),
    "tuned-questions": (
        "text/train-questions.jsonl --supervised --from runs/gpt --optimizer muon --learning-rate 2e-2",
        "gpt",
    ),
    "classifier": (
        "text/train-labels.jsonl --supervised --from runs/masked --optimizer muon --learning-rate 2e-2",
        "masked",
    ),
    "bert-classifier": (
        "text/train-labels.jsonl --supervised --from runs/bert --optimizer muon --learning-rate 2e-2",
        "bert",
    ),
}
_MUON = "--optimizer muon --learning-rate 3e-3"
FROM: Mapping[str, tuple[str, str]] = {
    "tuned": (f"text/heldout.txt --from runs/gpt --validation text/stories.txt {_MUON}", "gpt"),
    "tuned-gpt2": (f"text/heldout.txt --from runs/gpt2 --validation 0.3 {_MUON}", "gpt2"),
    "tuned-masked": (f"text/heldout.txt --from runs/masked --validation 0.3 {_MUON}", "masked"),
    "lora": ("text/heldout.txt --from runs/gpt --validation 0.3 --lora 4 --learning-rate 1e-2", "gpt"),
    "lora-attention": (
        "text/heldout.txt --from runs/gpt2 --validation 0.3 --lora 2 --lora-on attention --lora-alpha 8 "
        "--learning-rate 1e-2 --lora-dropout 0.1",
        "gpt2",
    ),
    "lora-experts": (
        "text/heldout.txt --from runs/llama --validation 0.3 --lora 2 --lora-on feed-forward --learning-rate 1e-2",
        "llama",
    ),
    "lora-questions": ("text/train-questions.jsonl --supervised --from runs/gpt --lora 2 --learning-rate 1e-2", "gpt"),
    "lora-labels": ("text/train-labels.jsonl --supervised --from runs/masked --lora 2 --learning-rate 1e-2", "masked"),
    "lora-translation": (
        f"{_PAIRS} --from runs/translation --lora 2 --learning-rate 3e-3 --batch-tokens 300",
        "translation",
    ),
    "tuned-translation": (f"{_PAIRS} --from runs/translation {_MUON} --batch-tokens 300", "translation"),
}

_RESUMED = (
    "gpt", "gpt2", "dropout", "r-drop", "accumulated", "experts", "lstm", "masked", "bigbird", "bfloat16",
    "translation", "bpe-dropout", "syntax-both", "bidirectional", "one-stack", "lstm-additive", "classifier",
    "questions", "lora", "lora-translation",
)  # fmt: skip
"""Runs that are resumed, at their end and at an earlier checkpoint."""

_GENERATING = (*(name for name in TEXT if not name.startswith(("masked", "bert"))), "questions", "labels", "tuned",
               "lora", "lora-attention")  # fmt: skip
_FILLING = ("masked", "bert", "masked-linformer", "masked-bigbird", "masked-window")
_CLASSIFYING = ("classifier", "bert-classifier")
_OF_ENGINES = ("gpt-long", "gpt2", "llama", "neox", "alibi", "t5", "window", "relative", "silu", "experts", "lstm")
"""Runs that each of the engines generates with."""
_TRANSLATING = (*PAIRS, *DECODER_ONLY, *RECURRENT, "lora-translation")

_SAMPLING: Mapping[str, str] = {
    "greedy": "--greedy",
    "temperature": "--temperature 1.3 -n 3",
    "top-k": "--top-k 7 -n 2",
    "top-p": "--top-p 0.7 -n 2",
    "min-p": "--min-p 0.3 -n 2",
    "typical": "--typical 0.6 -n 2",
    "all-filters": "--top-k 40 --top-p 0.9 --min-p 0.02 --typical 0.95 --temperature 0.9 -n 4 --batch-size 3",
    "penalties": "--repetition-penalty 1.3 --presence-penalty 0.4 --frequency-penalty 0.2 -n 2",
    "no-repeat": "--greedy --no-repeat-ngram 2",
    "bias": "--logit-bias ' the=-2' --logit-bias e=3 --logit-bias ' a=-inf' -n 2",
    "stop": "--stop the --stop '. ' --temperature 1 -n 3",
    "no-cache": "--no-cache -n 2",
    "alternatives": "--top-alternatives 3 -n 2",
    "long": "--max-tokens 90 -n 3 --temperature 1",
    "beam": "--beam 4 -n 4",
    "beam-long": "--beam 3 --max-tokens 60 --length-penalty 0.5",
    "draft": "--draft runs/gpt --max-tokens 40 -n 2",
    "draft-greedy": "--draft runs/gpt --greedy --max-tokens 60",
    "draft-prompt": "--draft prompt --greedy --max-tokens 60 --repetition-penalty 1.05",
    "draft-prompt-sampled": "--draft prompt --top-p 0.5 --max-tokens 40",
}
_BOTH_ENDS: Mapping[str, str] = {
    "many": "--prompts text/prompts.txt --max-tokens 24 --batch-size 3 -n 2",
    "many-long": "--prompts text/prompts.txt --max-tokens 70 --batch-size 2 --temperature 1.2",
    "many-greedy": "--prompts text/prompts.txt --max-tokens 24 --greedy",
    "empty-prompt": "'' --max-tokens 24 -n 2",
    "from-file": "--prompt-file text/heldout.txt --max-tokens 12 -n 2 --beam 2",
}
_TRANSLATION: Mapping[str, str] = {
    "greedy": "--beam 1",
    "beam": "--beam 4 --n-best 3",
    "coverage": "--beam 3 --coverage-penalty 0.4 --length-penalty 0.6",
    "prefix": "--beam 3 --prefix Der",
    "prefixes": "--beam 3 --prefix-file text/prefixes.txt < text/three.en",
    "penalties": "--beam 3 --no-repeat-ngram 2 --repetition-penalty 1.2 --logit-bias e=1",
    "sampled": "--sample --n-best 3 --top-p 0.9 --seed 4",
    "batches": "--beam 3 --batch-tokens 40 --read-ahead 3",
    "lengths": "--beam 3 --max-length-ratio 0.5 --max-length-extra 2",
    "ensemble": "--beam 3 --n-best 2 --ensemble runs/translation",
    "ensemble-sampled": "--sample --seed 3 --ensemble runs/translation",
    "stdout": "--beam 2",
}

_HUGGING_FACE: Mapping[str, bool] = {
    "gpt": False, "gpt2": True, "llama": True, "smollm": True, "portable": True, "neox": False, "bert": True,
    "marian": True, "marian-swish": True,
}  # fmt: skip
"""Runs that are exported, and whether the folder can be imported again without code of ours."""


def cases() -> list[Case]:
    """All cases, those that others need first."""
    found = [*_training(), *_resuming(), *_generating(), *_translating(), *_masked(), *_scoring(), *_data(), *_tools()]
    names = [case.name for case in found]
    assert len(names) == len(set(names)), "names of cases must differ"
    return found


def _case(name: str, *commands: str, tags: str = "", needs: tuple[str, ...] = (), engine: str = "") -> Case:
    """A case whose first part of the name is a tag; the engines' hardware flags are appended to each command."""
    first = name.partition("/")[0]
    compiled = engine.startswith("compiled")
    words = {first, *tags.split(), *({"engine"} if engine else ())}
    needed = tuple(f"train/{each}" for each in needs)
    return Case(name, commands, frozenset(words), needs=needed, is_compiled=compiled)


def _training() -> Iterator[Case]:
    for name, settings in TEXT.items():
        is_recurrent = "--architecture" in settings
        shape = _SHAPE.replace(_NOT_RECURRENT, "") if is_recurrent or "--n-heads" in settings else _SHAPE
        yield _train(name, f"text/stories.txt {_without(shape + ' ' + _LENGTH, settings)} {settings}", "text")
    for name, settings in PAIRS.items():
        yield _train(name, f"{_PAIRS} {_without(_TWO_SIDES, settings)} {settings}", "translation")
    for name, settings in DECODER_ONLY.items():
        shape = _TWO_SIDES.replace(" --n-encoder-layers 2", " --decoder-only")
        yield _train(name, f"{_PAIRS} {_without(shape, settings)} {settings}", "translation")
    for name, settings in RECURRENT.items():
        yield _train(name, f"{_PAIRS} {_without(_RECURRENT, settings)} {settings}", "translation")
    for name, (settings, needed) in {**EXAMPLES, **FROM}.items():
        shape = "" if "--from" in settings else _SHAPE
        defaults = _without(f"{shape} {_LENGTH}", settings)
        tags = ("lora " if "--lora" in settings else "") + ("translation" if "--source" in settings else "text")
        yield _train(name, f"{settings} {defaults}", tags, needs=(needed,) if needed else ())
    yield _case(
        "train/samples",
        f"train text/stories.txt {_SHAPE} {_LENGTH} --preset tiny --sample 'The road' --sample '' {HARDWARE} -o run",
        tags="training text",
    )
    for name, flags in {"two-ranks": "", "two-shards": "--shard"}.items():
        command = f"train text/stories.txt {_SHAPE} {_LENGTH} --preset tiny --processes 2 {flags} {HARDWARE} -o run"
        yield Case(f"train/{name}", (command,), frozenset({"train", "training", "distributed"}), is_process=True)


def _train(name: str, settings: str, tags: str, *, needs: tuple[str, ...] = ()) -> Case:
    hardware = HARDWARE.replace("--dtype float32", "") if "--dtype" in settings else HARDWARE
    return _case(f"train/{name}", f"train {settings} {hardware} -o run", tags=f"training {tags}", needs=needs)


def _without(defaults: str, settings: str) -> str:
    """Default flags, without those that the settings have."""
    words, kept = shlex.split(defaults), list[str]()
    given = set(shlex.split(settings))
    rivals = {"--batch-tokens": "--batch-size", "--batch-size": "--batch-tokens", "--epochs": "--steps"}
    given |= {rivals[flag] for flag in given & rivals.keys()}
    if given & {"--greedy", "--beam"}:
        given |= {"--seed"}
    if given & {"--kind", "nanogpt-cpu", "--from"}:
        given |= {"--vocab-size"}
    while words:
        flag = words.pop(0)
        values = []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        if flag not in given:
            kept += [flag, *values]
    return shlex.join(kept)


def _resuming() -> Iterator[Case]:
    for name in _RESUMED:
        tags = "training lora" if "lora" in name else "training"
        yield _case(
            f"resume/{name}",
            f"copy runs/{name} run",
            "train --resume run --steps 9 --json",
            tags=tags, needs=(name,),
        )  # fmt: skip
        yield _case(
            f"resume/{name}-branch",
            f"copy runs/{name} run",
            "train --resume run/checkpoints/step-3 --json",
            tags=tags, needs=(name,),
        )  # fmt: skip


def _generating() -> Iterator[Case]:
    plain = "generate runs/{run} 'The road' --json --max-tokens 24 {hardware}"
    for name in _GENERATING:
        command = plain.format(run=name, hardware=HARDWARE)
        prompts = "beginnings" if name in {"nanogpt", "char"} else "prompts"
        yield _case(
            f"generate/each/{name}",
            f"{command} --greedy",
            f"{command} --seed 7 -n 3 --max-tokens 48",
            f"{command} --beam 3 -n 2",
            f"generate runs/{name} --prompts text/{prompts}.txt --json --seed 2 --max-tokens 40 {HARDWARE}",
            f"{command} --no-cache --greedy",
            f"perplexity runs/{name} text/heldout.txt --json {HARDWARE}",
            tags="decoding", needs=(name,),
        )  # fmt: skip
    for name, flags in _SAMPLING.items():
        command = _without("--json --seed 7 --max-tokens 24", flags)
        yield _case(
            f"generate/flags/{name}", f"generate runs/gpt-long 'The road' {command} {flags} {HARDWARE}",
            tags="decoding", needs=("gpt-long", "gpt"),
        )  # fmt: skip
    for name, flags in _BOTH_ENDS.items():
        seed = _without("--seed 7", flags)
        command = f"generate runs/gpt-long {flags} --json {seed} {HARDWARE}"
        yield _case(f"generate/prompts/{name}", command, tags="decoding", needs=("gpt-long",))
    yield _case(
        "generate/plain",
        f"generate runs/gpt-long 'The road' --seed 3 --max-tokens 30 {HARDWARE}",
        f"generate runs/gpt-long 'The road' --seed 3 --max-tokens 30 -n 3 --no-echo {HARDWARE}",
        f"generate runs/gpt-long --seed 3 --max-tokens 30 {HARDWARE} < text/heldout.txt",
        f"generate runs/gpt-long --prompts text/prompts.txt --seed 3 --max-tokens 8 {HARDWARE}",
        tags="decoding", needs=("gpt-long",),
    )  # fmt: skip
    for engine, hardware in _ENGINES.items():
        for name in _OF_ENGINES:
            command = plain.format(run=name, hardware=hardware)
            yield _case(
                f"generate/{engine}/{name}",
                f"{command} --greedy", f"{command} --seed 7 -n 3 --max-tokens 48", f"{command} --beam 3 -n 2",
                f"generate runs/{name} --prompts text/prompts.txt --json --seed 2 --max-tokens 40 {hardware}",
                f"{command} --draft prompt --greedy --max-tokens 40",
                tags="decoding", needs=(name,), engine=engine,
            )  # fmt: skip


def _translating() -> Iterator[Case]:
    for name in _TRANSLATING:
        heads = " --heads text/test.heads" if "syntax" in name else ""
        to = " --to de" if name == "bidirectional" else ""
        coverage = "" if name in {*DECODER_ONLY, "lstm-none"} else " --coverage-penalty 0.2"
        command = f"translate runs/{name} text/test.en --json{heads}{to} {HARDWARE}"
        yield _case(
            f"translate/each/{name}",
            f"{command} --beam 1", f"{command} --beam 3 --n-best 2{coverage}",
            f"{command} --sample --seed 3 --n-best 2 --batch-tokens 64",
            f"perplexity runs/{name} --source text/test.en --target text/test.de{heads}{to} --json {HARDWARE}",
            tags="translation decoding", needs=(name,),
        )  # fmt: skip
    for name, flags in _TRANSLATION.items():
        source = "" if "<" in flags else "text/test.en"
        json = "" if name == "stdout" else "--json"
        command = f"translate runs/translation-long {source} {json} {HARDWARE} {flags}"
        yield _case(
            f"translate/flags/{name}", command,
            tags="translation decoding", needs=("translation-long", "translation"),
        )  # fmt: skip
    for engine, hardware in _ENGINES.items():
        for name in ("translation-long", "one-stack"):
            command = f"translate runs/{name} text/test.en --json {hardware}"
            yield _case(
                f"translate/{engine}/{name}",
                f"{command} --beam 1", f"{command} --beam 4 --n-best 2",
                f"{command} --sample --seed 3 --n-best 2",
                tags="translation decoding", needs=(name,), engine=engine,
            )  # fmt: skip
    yield _case(
        "translate/evaluate",
        "evaluate runs/translation-long --source text/test.en --target text/test.de --beam 2 --json --resamples 20 "
        f"-o out.de {HARDWARE}",
        "evaluate --hypotheses text/test.en --target text/test.de --json --resamples 20",
        tags="translation decoding", needs=("translation-long",),
    )  # fmt: skip
    yield _case(
        "translate/attention",
        f"translate runs/translation-long text/test.en --attention out.jsonl --beam 2 {HARDWARE}",
        "attention runs/translation-long 'A dog runs.' --target 'Ein Hund rennt.' --json " + HARDWARE,
        "attention runs/translation-long 'A dog runs.' --json " + HARDWARE,
        "attention runs/one-stack 'A dog runs.' --target 'Ein Hund rennt.' --json " + HARDWARE,
        "attention runs/syntax-both 'A dog runs.' --heads '2 3 0' --json " + HARDWARE,
        tags="translation", needs=("translation-long", "one-stack", "syntax-both"),
    )  # fmt: skip


def _masked() -> Iterator[Case]:
    for name in _FILLING:
        yield _case(
            f"fill/{name}",
            f"fill runs/{name} 'The [MASK] saw the [MASK] fox.' --json --top-k 4 {HARDWARE}",
            f"fill runs/{name} --file text/blanks.txt {HARDWARE}",
            f"perplexity runs/{name} text/heldout.txt --json --score-every 9 {HARDWARE}",
            f"attention runs/{name} 'The road' --json {HARDWARE}" if "linformer" not in name else f"info runs/{name}",
            tags="masked decoding", needs=(name,),
        )  # fmt: skip
    for name in _CLASSIFYING:
        yield _case(
            f"classify/{name}",
            f"classify runs/{name} text/test-labels.jsonl --json {HARDWARE}",
            f"classify runs/{name} text/test.en --batch-size 3 {HARDWARE}",
            f"classify runs/{name} text/test.en --json --device cpu --dtype int8 --threads 1",
            tags="masked decoding", needs=(name,),
        )  # fmt: skip


def _scoring() -> Iterator[Case]:
    flags = {
        "tokens": "--per-token", "stride": "--stride 3 --json", "context": "--context 16 --json",
        "far": "--context 48 --stride 24 --json", "whole": "--stride 32 --batch-size 3 --json", "csv": "--csv",
        "show": "--show", "html": "--html out.html", "versus": "--versus runs/gpt --json",
    }  # fmt: skip
    for name, each in flags.items():
        yield _case(
            f"perplexity/{name}", f"perplexity runs/gpt-long text/heldout.txt {each} {HARDWARE}",
            tags="scoring decoding", needs=("gpt-long", "gpt"),
        )  # fmt: skip
    yield _case(
        "perplexity/files",
        f"perplexity runs/gpt-long text/folder text/stories.jsonl --json {HARDWARE}",
        f"perplexity runs/gpt-long --json {HARDWARE} < text/heldout.txt",
        f"perplexity runs/questions text/test-questions.jsonl --json {HARDWARE}",
        f"perplexity runs/labels text/test-labels.jsonl --json {HARDWARE}",
        f"perplexity runs/translation --source text/test.en --target text/test.de --json {HARDWARE}",
        tags="scoring decoding", needs=("gpt-long", "questions", "labels", "translation"),
    )  # fmt: skip
    for engine, hardware in _ENGINES.items():
        yield _case(
            f"perplexity/{engine}",
            f"perplexity runs/gpt-long text/heldout.txt --json {hardware}",
            f"perplexity runs/translation --source text/test.en --target text/test.de --json {hardware}",
            tags="scoring decoding", needs=("gpt-long", "translation"), engine=engine,
        )  # fmt: skip
    yield _case(
        "attention/text",
        f"attention runs/gpt-long 'The road was steep' --json {HARDWARE}",
        f"attention runs/gpt-long 'The road was steep' --layer 2 --head 1 --unit tokens {HARDWARE}",
        f"attention runs/gpt-long 'The road was steep' -o out.html {HARDWARE}",
        f"attention runs/bigbird 'The road was steep' --json {HARDWARE}",
        tags="scoring", needs=("gpt-long", "bigbird"),
    )  # fmt: skip


def _data() -> Iterator[Case]:
    corpora = {
        "text": "text/stories.txt", "folder": "text/folder", "jsonl": "text/stories.jsonl",
        "several": "text/stories.txt text/heldout.txt --validation text/heldout.txt",
        "byte": "text/stories.txt --kind byte", "char": "text/stories.txt --kind char --validation 0.3",
        "unknown": "text/heldout.txt --kind char --unknown '?' --validation text/stories.txt",
        "special": "text/stories.txt --special '<a>' --special '<b>' --vocab-size 280 --min-frequency 3",
        "separator": "text/train.en --separator '' --vocab-size 300",
        "questions": "text/train-questions.jsonl --supervised --vocab-size 300",
        "labels": "text/train-labels.jsonl --supervised --vocab-size 300",
    }  # fmt: skip
    for name, flags in corpora.items():
        settings = flags if "--kind" in flags or "--vocab-size" in flags else f"{flags} --vocab-size 300"
        yield _case(f"prepare/{name}", f"prepare {settings} -o tokens --processes 1 --json", tags="data")
    several = "prepare text/stories.jsonl --vocab-size 300 -o tokens --json"
    yield Case("prepare/processes", (f"{several} --processes 2",), frozenset({"prepare", "data"}), is_process=True)
    yield _case(
        "prepare/parts",
        "tokenizer train text/stories.txt --vocab-size 300 -o tokenizer.json --json",
        "prepare text/stories.jsonl --tokenizer tokenizer.json --part 1/2 -o one --processes 1",
        "prepare text/stories.jsonl --tokenizer tokenizer.json --part 2/2 -o two --processes 1",
        "prepare --join one two -o tokens --json",
        f"train tokens {_without(_SHAPE + ' ' + _LENGTH, '--from')} --preset tiny {HARDWARE} -o run",
        tags="data",
    )
    pairs = {
        "tsv": "--pairs text/train.tsv",
        "jsonl": "--pairs text/train-tagged.jsonl --bidirectional --source-language en --target-language de",
    }
    for name, flags in pairs.items():
        command = f"train {flags} {_TWO_SIDES} --preset translation-tiny {HARDWARE} -o run"
        yield _case(f"prepare/pairs-{name}", command, tags="data translation")
    yield _case(
        "tokenizer/all",
        "tokenizer train text/stories.txt text/heldout.txt --vocab-size 320 -o tokenizer.json --json",
        "tokenizer encode tokenizer.json 'The road — was steep <|endoftext|> Über' --json",
        "tokenizer encode tokenizer.json 'a<|endoftext|>b' --parse-special",
        "tokenizer encode tokenizer.json < text/heldout.txt",
        "tokenizer decode tokenizer.json '40 41 42 300 301'",
        "tokenizer inspect tokenizer.json --file text/heldout.txt --json",
        "tokenizer inspect tokenizer.json 'Wo bist du?'",
        "tokenizer train text/stories.txt --kind char -o chars.json --json",
        tags="data",
    )


def _tools() -> Iterator[Case]:
    yield _case(
        "tools/runs",
        "average runs/gpt --last 2 -o averaged", "merge runs/lora -o merged",
        "merge runs/lora-translation -o merged-translation",
        f"generate merged 'The road' --greedy --json --max-tokens 12 {HARDWARE}",
        f"generate runs/lora 'The road' --greedy --json --max-tokens 12 {HARDWARE}",
        tags="interop", needs=("gpt", "lora", "lora-translation"),
    )  # fmt: skip
    described = ("gpt", "smollm", "experts", "lstm", "bert", "translation", "lstm-additive", "lora", "compressed")
    yield _case("tools/info", *(f"info runs/{name} --json" for name in described), tags="tools", needs=described)
    presets = ("tiny", "gpt2", "llama-15m", "smollm-135m", "transformer-base", "t-dmca", "switch-base", "bert-base",
               "seq2seq", "translation", "depth-4", "translation-depth-3", "portable-small")  # fmt: skip
    yield _case("tools/presets", "info --json", *(f"info {name} --json" for name in presets), tags="tools")
    yield _case(
        "tools/shards", "info gpt2 --processes 8 --shard --batch-tokens 524288 --micro-batch-size 8 --json",
        "info small --processes 4 --batch-tokens 65536 --micro-batch-size 8 --json", tags="tools",
    )  # fmt: skip
    yield _case("tools/corpora", "corpus list --json", "plot runs/gpt --width 60", tags="tools", needs=("gpt",))
    for name, reads_back in _HUGGING_FACE.items():
        imported = ["import exported -o run"] if reads_back else []
        yield _case(
            f"export/huggingface-{name}", f"export runs/{name} -o exported", *imported, tags="interop", needs=(name,)
        )  # fmt: skip
    yield _case("export/peft", "export runs/lora-attention --to peft -o exported", tags="interop",
                needs=("lora-attention",))  # fmt: skip
    for name in ("gpt2", "llama", "portable"):
        yield _case(
            f"export/gguf-{name}", f"export runs/{name} --to gguf -o exported.gguf",
            f"export runs/{name} --to gguf --type q8_0 -o quantised.gguf", tags="interop", needs=(name,),
        )  # fmt: skip
    for name in ("gpt2", "transformer-base"):
        yield _case(f"export/ctranslate2-{name}", f"export runs/{name} --to ctranslate2 --type int8 -o exported",
                    tags="interop", needs=(name,))  # fmt: skip
