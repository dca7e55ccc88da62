"""No option is ignored in silence: each is refused where it has no effect, if it is typed, and there alone.

The table of `cli.flags.ineffective_options` says where. For each of its rows there are two command lines here: one in
the mode in which the options of the row are ignored, and one in which they are heeded. All end before anything is
trained or loaded, since a file is empty, or it or a run is missing.
"""

import io
import re
import sys
from itertools import chain
from typing import NamedTuple

import pytest

from cli.flags.ineffective_options import RULES, IneffectiveRule, Invocation, refuse_ineffective
from cli.flags.options import _argument_or_flag
from cli.main import run
from lm.config.data import DataConfig, FilesConfig
from lm.config.decoding import FillConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig, PerplexityConfig, ScoringConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.config.model import _OF_ATTENTION, _OF_EXPERTS, _OF_SCALING, OF_BLOCKS, ModelConfig
from lm.config.options import Option, list_options
from lm.config.run_config import SECTIONS
from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError
from tests.cli.small_runs import make_run
from tests.documented_help import commands


class Case(NamedTuple):
    """Two command lines, less the name of the command, to which options of a row are added.

    Attributes:
        ignored: in the mode of the row.
        heeded: not in it; None where it takes more than a command line.
    """

    ignored: str
    heeded: str | None


_PAIRS = "--source empty.en --target empty.de"
_TUNED = "--from missing-run"
CASES: dict[tuple[str, str], Case] = {
    ("train", "with --resume,"): Case("--resume missing-run", "empty.txt"),
    ("train", "on a corpus of text,"): Case("empty.txt", _PAIRS),
    ("train", "on pairs "): Case(_PAIRS, "empty.txt"),
    ("train", "beside --validation-source,"): Case(
        f"{_PAIRS} --validation-source missing.e --validation-target missing.d", _PAIRS
    ),
    ("train", "without --pairs,"): Case(_PAIRS, "--pairs empty.jsonl"),
    ("train", "on a model of one direction"): Case(_PAIRS, f"{_PAIRS} --bidirectional"),
    ("train", "where there is a tokenizer already (--tokenizer, --from), as it is for training them"): Case(
        f"{_PAIRS} --tokenizer missing.json", _PAIRS
    ),
    ("train", "where there is a tokenizer already (--tokenizer, --from), as it is for training one"): Case(
        "empty.txt --tokenizer missing.json", "empty.txt"
    ),
    ("train", "with --from, which brings the blocks"): Case(f"empty.txt {_TUNED}", "empty.txt"),
    ("train", "on tokens that are prepared"): Case("tokens -o occupied", "empty.txt"),
    ("train", "on a tokenizer of characters or bytes"): Case("empty.txt --kind byte", "empty.txt"),
    ("train", "with --from, which brings all weights"): Case("empty.txt --from plain-run", "empty.txt"),
    ("train", "on recurrent layers"): Case("empty.txt --architecture lstm", "empty.txt"),
    ("train", "without rotary positions"): Case("empty.txt --positions learned", "empty.txt"),
    ("train", "without --experts"): Case("empty.txt", "empty.txt --experts 4"),
    ("train", "without adapters"): Case("empty.txt", f"empty.txt {_TUNED} --lora 2"),
    ("train", "if it is 0,"): Case("empty.txt --from plain-run --lora 2", None),
    ("train", "where no tokens are masked"): Case("empty.txt", "empty.txt --objective masked"),
    ("train", "without --bpe-dropout"): Case(f"{_PAIRS} --bpe-dropout 0", _PAIRS),
    ("train", "beside --batch-tokens"): Case("empty.txt --batch-tokens 512", "empty.txt"),
    ("train", "except with --schedule wsd"): Case("empty.txt --schedule cosine", "empty.txt --schedule wsd"),
    ("train", "with a --schedule that"): Case(
        "empty.txt --schedule constant", "empty.txt --schedule linear"
    ),
    ("train", "without dropout,"): Case("empty.txt --dropout 0", "empty.txt --dropout 0.1"),
    ("train", "without evaluations before the end"): Case("empty.txt --evaluate-every 0", "empty.txt"),
    ("train", "without held-out data"): Case(f"{_PAIRS} --validation 0.0", _PAIRS),
    ("train", "where no sentence is translated"): Case(f"{_PAIRS} --bleu-sentences 0", _PAIRS),
    ("train", "where pairs are in plain text"): Case(
        "--pairs text.txt -o occupied", "--pairs rows.jsonl -o occupied"
    ),
    ("train", "where another launcher"): Case("empty.txt", None),
    ("train", "in one process"): Case("empty.txt", None),
    ("train", "on plain text"): Case("text.txt -o occupied", "rows.jsonl -o occupied"),
    ("train", "on JSON, CSV,"): Case("rows.jsonl -o occupied", "text.txt -o occupied"),
    ("prepare", "on plain text"): Case("text.txt", "rows.jsonl"),
    ("prepare", "on JSON, CSV,"): Case("rows.jsonl", "text.txt"),
    ("tokenizer train", "on plain text"): Case("text.txt -o a.json --force", "missing.jsonl -o a.json"),
    ("tokenizer train", "on JSON, CSV,"): Case("rows.jsonl -o a.json --force", "missing.txt -o a.json"),
    ("tokenizer inspect", "on plain text"): Case(
        "plain-run --file text.txt", "plain-run --file rows.jsonl"
    ),
    ("tokenizer inspect", "on JSON, CSV,"): Case("plain-run --file rows.jsonl", "plain-run --file text.txt"),
    ("perplexity", "on the pairs that"): Case("translating-run", "plain-run text.txt"),
    ("perplexity", "on the split that"): Case("plain-run", "plain-run text.txt"),
    ("perplexity", "on plain text"): Case("plain-run text.txt", "plain-run rows.jsonl"),
    ("perplexity", "on JSON, CSV,"): Case("plain-run rows.jsonl", "plain-run text.txt"),
    ("perplexity", "on examples,"): Case("supervised-run examples.jsonl", "missing-run text.txt"),
    ("train", "on plain text, which"): Case("text.txt -o occupied", "table.csv -o occupied"),
    ("prepare", "on plain text, which"): Case("text.txt", "table.csv"),
    ("tokenizer train", "on plain text, which"): Case("text.txt -o a.json --force", "missing.csv -o a.json --force"),
    ("train", "where no file is CSV"): Case("text.txt -o occupied", "table.csv -o occupied"),
    ("train", "except on examples"): Case("rows.jsonl -o occupied", "missing.jsonl -o occupied"),
    ("train", "on files that are named"): Case("text.txt -o occupied", "missing.txt -o occupied"),
    ("prepare", "where no file is CSV"): Case("text.txt", "table.csv"),
    ("prepare", "except on examples"): Case("rows.jsonl", "missing.jsonl"),
    ("prepare", "on files that are named"): Case("text.txt", "missing.txt"),
    ("tokenizer train", "where no file is CSV"): Case("text.txt -o a.json --force", "missing.csv -o a.json --force"),
    ("tokenizer train", "except on examples"): Case("rows.jsonl -o a.json --force", "missing.jsonl -o a.json --force"),
    ("tokenizer train", "on files that are named"): Case("text.txt -o a.json --force", "missing.txt -o a.json --force"),
    ("tokenizer inspect", "where no file is CSV"): Case("plain-run --file text.txt", "plain-run --file table.csv"),
    ("tokenizer inspect", "except on examples"): Case("plain-run --file rows.jsonl", "plain-run --file missing.jsonl"),
    ("tokenizer inspect", "on files that are named"): Case("plain-run --file text.txt", "plain-run --file missing.txt"),
    ("perplexity", "where no file is CSV"): Case("plain-run text.txt", "plain-run table.csv"),
    ("perplexity", "except on examples"): Case("plain-run rows.jsonl", "plain-run missing.jsonl"),
    ("perplexity", "on files that are named"): Case("plain-run text.txt", "plain-run missing.txt"),
    ("import", "on a folder without adapters"): Case("tokens -o new", "adapters -o new"),
    ("generate", "with --beam, which searches"): Case("missing-run hello --beam 2", "missing-run hello"),
    ("generate", "with --beam on one prompt"): Case("missing-run hello --beam 2", "missing-run hello"),
    ("generate", "with --greedy,"): Case("missing-run hello --greedy", "missing-run hello"),
    ("generate", "with --temperature 0,"): Case("missing-run hello --temperature 0", "missing-run hello"),
    ("generate", "with --ignore-eos,"): Case("missing-run hello --ignore-eos", "missing-run hello"),
    ("generate", "without --beam"): Case("missing-run hello", "missing-run hello --beam 2"),
    ("generate", "with --interactive,"): Case("missing-run --interactive", "missing-run hello"),
    ("generate", "without --json"): Case("missing-run hello", "missing-run hello --json"),
    ("generate", "with --json,"): Case("missing-run hello --json", "missing-run hello"),
    ("generate", "with --prompts,"): Case("missing-run --prompts text.txt", "missing-run"),
    ("generate", "without --prompts,"): Case("missing-run hello", "missing-run --prompts missing.txt"),
    ("generate", "with --draft,"): Case("missing-run hello --draft prompt -n 2", "missing-run hello -n 2"),
    ("generate", "on a run trained on examples,"): Case(
        "supervised-run hello --max-tokens 1", "plain-run hello --max-tokens 1"
    ),
    ("generate", "on a single sample"): Case("missing-run hello", "missing-run hello -n 2"),
    ("chat", "with --greedy,"): Case("missing-run --greedy", "missing-run"),
    ("chat", "with --temperature 0,"): Case("missing-run --temperature 0", "missing-run"),
    ("chat", "with --ignore-eos,"): Case("missing-run --ignore-eos", "missing-run"),
    ("translate", "in a search,"): Case("missing-run text.txt", "missing-run text.txt --sample"),
    ("translate", "with --sample,"): Case("missing-run text.txt --sample", "missing-run text.txt"),
    ("translate", "with --temperature 0,"): Case(
        "missing-run text.txt --sample --temperature 0", "missing-run text.txt --sample"
    ),
    ("translate", "with --greedy,"): Case("missing-run text.txt --greedy", "missing-run text.txt"),
    ("translate", "without --attention"): Case("missing-run text.txt", "missing-run text.txt --attention a.html"),
    ("translate", "with --read-ahead 1,"): Case("missing-run text.txt --read-ahead 1", "missing-run text.txt"),
    ("fill", "on a single TEXT"): Case("missing-run hello", "missing-run --file text.txt"),
    ("perplexity", "without --pairs"): Case("missing-run text.txt", "missing-run --pairs text.txt"),
    ("evaluate", "without --pairs"): Case("missing-run examples.jsonl", "missing-run --pairs text.txt"),
    ("evaluate", "on files of lines"): Case(
        "missing-run --source text.txt --target text.txt", "missing-run --pairs text.txt"
    ),
    ("perplexity", "on pairs,"): Case(f"missing-run {_PAIRS}", "missing-run text.txt"),
    ("perplexity", "on text,"): Case("missing-run text.txt", f"missing-run {_PAIRS}"),
    ("perplexity", "with --compare-dtypes,"): Case("missing-run text.txt --compare-dtypes", "missing-run text.txt"),
    ("evaluate", "on labelled examples"): Case(
        "missing-run examples.jsonl", "missing-run --source text.txt --target text.txt"
    ),
    ("evaluate", "on the examples that"): Case("labelling-run", "missing-run --source text.txt --target text.txt"),
    ("evaluate", "on the split that"): Case("labelling-run", "missing-run examples.jsonl"),
    ("evaluate", "on the pairs that"): Case("translating-run", "missing-run examples.jsonl"),
    ("evaluate", "on translations,"): Case(
        "missing-run --source text.txt --target text.txt", "missing-run examples.jsonl"
    ),
    ("evaluate", "on finished translations"): Case(
        "--hypotheses text.txt --target text.txt --resamples 0", "missing-run --source text.txt --target text.txt"
    ),
    ("attention", "on a page,"): Case("missing-run hello -o a.html", "missing-run hello -o a.txt"),
    ("average", "where checkpoints are named"): Case("missing-a missing-b -o new", "missing-a -o new"),
    ("info", "without a run or preset"): Case("", "tiny"),
    ("info", "without --processes"): Case("tiny", "missing-run --processes 2"),
    ("plot", "on a picture"): Case("plain-run -o a.png", "missing-run"),
    ("prepare", "with --join,"): Case("--join missing-a", "missing.txt"),
    ("prepare", "with --tokenizer,"): Case("missing.txt --tokenizer missing.json", "missing.txt"),
    ("prepare", "on a tokenizer of characters or bytes"): Case("missing.txt --kind byte", "missing.txt"),
    ("tokenizer train", "on a tokenizer of characters or bytes"): Case(
        "missing.txt -o a.json --kind char", "missing.txt -o a.json"
    ),
    ("prepare", "on a tokenizer that knows"): Case("missing.txt", "missing.txt --kind char"),
    ("tokenizer train", "on a tokenizer that knows"): Case(
        "missing.txt -o a.json", "missing.txt -o a.json --kind char"
    ),
    ("tokenizer inspect", "without files"): Case("plain-run", "missing-run text.txt"),
}  # fmt: skip
"""By command and the beginning of what a row calls the mode."""

VALUES: dict[str, tuple[str, ...]] = {
    "prompt": ("hello",), "--prompt-file": ("text.txt",), "--out": ("new",), "--preset": ("small",), "--depth": ("2",),
    "--config": ("missing.toml",), "--from": ("missing-run",), "--tokenizer": ("missing-run",), "--draft": ("prompt",),
    "--validation-source": ("missing.en", "--validation-target", "missing.de"), "--processes": ("2",),
    "--validation-target": ("missing.de", "--validation-source", "missing.en"), "--source": ("text.txt",),
    "--html": ("a.html",), "--versus": ("missing-run",), "--to": ("de",), "--special": ("<x>",), "--unknown": ("?",),
    "--part": ("1/2",), "--samples": ("2",), "--top-alternatives": ("2",), "--batch-size": ("4",), "--last": ("2",),
    "--batch-tokens": ("512",), "--micro-batch-size": ("2",), "--width": ("40",), "--height": ("9",),
    "--best-by": ("bleu",), "--logit-bias": ("5=1",), "--source-language": ("en",), "--target-language": ("de",),
    "--validation": ("0.2",), "--bleu-sentences": ("7",), "--device": ("cpu",), "--beam": ("3",),
    "--target": ("text.txt",), "--heads": ("text.txt",), "--hypotheses": ("text.txt",), "--labels": ("examples.jsonl",),
    "--resamples": ("10",), "--pairs": ("text.txt",),
    "--encoding": ("latin-1",),
}  # fmt: skip
"""What is typed after a flag, where the option itself does not say."""
_EXCLUSIVE = {"--csv", "--per-token", "--show", "--html", "--versus", "--compare-dtypes"}
SPECIAL = {("if it is 0,", "--lora-alpha"): ("0",), ("without rotary positions", "--rope-base"): ("500",)}
_CONFIGS = (
    *SECTIONS.values(), SamplingConfig, TranslationConfig, PerplexityConfig, AttentionConfig, HardwareConfig,
    FilesConfig, DataConfig, TokenizerConfig, WorkersConfig, FillConfig, ScoringConfig,
)  # fmt: skip


_SHOWN = Invocation("train", {}, {}, {}, {
    option.flag: f"--set {section}.{option.name}"
    for section, config in SECTIONS.items() for option in list_options(config) if option.is_advanced
})  # fmt: skip
"""Names settings that have no visible flag by their keys."""


def _described(flag: str) -> Option | None:
    return next((each for config in _CONFIGS for each in list_options(config) if each.flag == flag), None)


def _case(command: str, rule: IneffectiveRule) -> tuple[str, Case]:
    """The longest beginning of what the rule calls its mode for which there is a case."""
    found = [start for name, start in CASES if name == command and rule.where.startswith(start)]
    assert found, f"no case here for {command}: {rule.where!r}"
    start = max(found, key=len)
    return start, CASES[command, start]


def _typed(rule: IneffectiveRule, start: str, flag: str) -> tuple[str, ...]:
    """An option with a value that it can have, as it is typed; recurrent models refuse all but defaults themselves."""
    option = _described(flag)
    if given := SPECIAL.get((start, flag)) or VALUES.get(flag):
        return given if flag == "prompt" else (flag, *given)
    if option is None or option.kind is bool:
        return ("--no-echo",) if flag == "--echo" else (flag,)
    if start in _DEFAULTS_ALONE and option.name != "expert_balance":
        return (flag, str(option.default))
    if option.choices:
        return (flag, next(choice for choice in option.choices if choice != option.default))
    if option.kind in (str, tuple):
        return (flag, "attention" if flag == "--lora-on" else "word")
    return (flag, str(max(option.minimum or 0, 1 if option.kind is int else 0.5)))


_DEFAULTS_ALONE = {"on recurrent layers", "without --experts", "without rotary positions"}
"""Modes in which the model itself refuses what is not the default."""

ROWS = [
    pytest.param(command, rule, id=f"{command} {rule.where[:40]}")
    for rule in RULES
    for command in rule.commands
    if "another launcher" not in rule.where  # see below
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of each kind, a run of a small model, and a folder that is taken."""
    made = tmp_path_factory.mktemp("files")
    (made / "text.txt").write_text("one line of text\nanother line of text\n" * 20)
    (made / "table.csv").write_text("text,label\nsome text,word\n" * 20)
    (made / "pairs.tsv").write_text("eins\tone\n" * 9)
    (made / "rows.jsonl").write_text('{"text": "some text", "word": "some words", "source": "a", "target": "b"}\n' * 20)
    (made / "examples.jsonl").write_text('{"prompt": "the owl", "completion": "ran"}\n')
    for name in ("empty.txt", "empty.en", "empty.de", "empty.jsonl"):
        (made / name).touch()
    (made / "occupied").mkdir()
    (made / "occupied" / "notes.txt").write_text("not a run")
    (made / "adapters").mkdir()
    (made / "adapters" / "adapter_config.json").write_text("{}")
    make_run(made / "plain-run", kind="byte")
    make_run(made / "translating-run", kind="byte", n_encoder_layers=1)
    make_run(made / "supervised-run", kind="byte", supervised=True)
    make_run(made / "labelling-run", kind="byte", supervised=True, label_completions=("\na", "\nb"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(made / "cache"))
        assert run(["prepare", str(made / "text.txt"), "--kind", "byte", "-o", str(made / "tokens")]) == 0
    return made


@pytest.fixture
def said(folder, monkeypatch, capsys):
    """Runs a command line where the files are; returns its exit code and what it said on stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LM_CACHE", str(folder / "cache"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def call(command: str, *arguments: str) -> tuple[int, str]:
        code = run([*command.split(), *arguments])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(("command", "rule"), ROWS)
def test_options_without_effect_are_refused_if_they_are_typed_and_only_then(said, monkeypatch, command, rule):
    """All of a row that may be typed together."""
    start, case = _case(command, rule)
    typed = {flag: _typed(rule, start, flag) for flag in rule.flags}
    shown = _SHOWN.name_options if command == "train" else str
    where = shown(rule.where)
    for flags in _groups([*typed]):
        code, error = said(command, *case.ignored.split(), *chain(*(typed[flag] for flag in flags)))
        assert (code, error.count("\n")) == (2, 1), error
        named, _, rest = error.removeprefix("lm: ").partition(f" no effect {where}: ")
        assert rest, error
        names = [name.removesuffix("=true") for name in named.removesuffix(" has").removesuffix(" have").split(", ")]
        assert names == ["PROMPT" if flag == "prompt" else shown(typed[flag][0]) for flag in flags]
    if case.heeded is not None:
        for words in typed.values():
            _, error = said(command, *case.heeded.split(), *words)
            assert f"no effect {where}" not in error
    for flags in _groups([*typed.keys() - {"prompt", "--lora-alpha"}]):
        with monkeypatch.context() as patch:
            for flag in flags:
                patch.setenv("LM_" + flag.removeprefix("--").replace("-", "_").upper(), _in_environment(typed[flag]))
            assert "no effect" not in said(command, *case.ignored.split())[1]


def _groups(flags: list[str]) -> list[list[str]]:
    """Options that may be typed together: of those that exclude each other, one per group."""
    others = [flag for flag in flags if flag in _EXCLUSIVE][1:]
    return [[flag for flag in flags if flag not in others], *([flag] for flag in others)]


def _in_environment(typed: tuple[str, ...]) -> str:
    """The value of an option for its variable."""
    if len(typed) > 1:
        return typed[1]
    return "no" if typed[0].startswith("--no-") else "yes"


def test_each_row_has_a_case_and_each_case_a_row():
    used = {(command, _case(command, rule)[0]) for rule in RULES for command in rule.commands}
    assert used == set(CASES)


HEEDED = {
    "demo": {"--out", "--steps"},
    "train": {
        "--source", "--target", "--pairs", "--heads", "--validation-heads", "--resume", "--tensorboard", "--json",
        "--steps", "--epochs", "--tokens", "--budget", "--compile", "--dry-run", "--checkpoint-activations",
        "--offload", "--micro-batch-size", "--set",
    },
    "generate": {
        "--prompts", "--cache", "--max-tokens", "--ignore-eos", "--beam", "--device", "--dtype", "--threads",
    },
    "chat": {
        "--system", "--max-tokens", "--ignore-eos", "--greedy", "--repetition-penalty", "--presence-penalty",
        "--frequency-penalty", "--no-repeat-ngram", "--logit-bias", "--stop", "--stats", "--device", "--dtype",
        "--threads",
    },
    "serve": {
        "--host", "--port", "--token", "--cors", "--runs", "--batch-size", "--max-requests", "--max-samples",
        "--max-length", "--max-body", "--timeout", "--drain", "--prefill-chunk", "--device", "--dtype", "--threads",
    },
    "translate": {
        "--out", "--to", "--ensemble", "--prefix", "--prefix-file", "--heads", "--sample", "--attention", "--json",
        "--n-best", "--max-length-ratio", "--max-length-extra", "--read-ahead", "--repetition-penalty",
        "--presence-penalty", "--frequency-penalty", "--no-repeat-ngram", "--logit-bias", "--device", "--dtype",
        "--threads", "--processes",
    },
    "fill": {"--file", "--json", "--top-k", "--device", "--dtype", "--threads"},
    "classify": {
        "--labels", "--json", "--top-k", "--batch-size", "--format", "--encoding", "--include", "--exclude",
        "--skip-unreadable", "--skip-malformed", "--header", "--text-column", "--label-column", "--device", "--dtype",
        "--threads",
    },
    "perplexity": {"--source", "--target", "--pairs", "--heads", "--json", "--device", "--threads"},
    "evaluate": {"--json"},
    "attention": {"--target", "--to", "--heads", "--out", "--json", "--unit", "--device", "--dtype", "--threads"},
    "average": {"--out"}, "merge": {"--out"}, "export": {"--out", "--to", "--type"}, "import": {"--out"},
    "info": {"--json"}, "runs": {"--json"}, "plot": {"--what", "--out"},
    "bench": {"--seconds", "--batch-size", "--compare", "--json", "--device", "--dtype", "--threads"},
    "compile": set(),
    "prepare": {"--out", "--force", "--join", "--json"},
    "tokenizer train": {"--out", "--special", "--force", "--json", "--kind", "--supervised", "--format", "--encoding",
                        "--skip-unreadable", "--keep-line-ends"},
    "tokenizer encode": {"--parse-special", "--json"}, "tokenizer decode": {"--skip-special", "--json"},
    "tokenizer inspect": {"--file", "--json"}, "corpus list": {"--json"}, "corpus get": {"--out", "--json"},
}  # fmt: skip
"""By command, options that have an effect in every mode, or choose the mode, or are refused elsewhere if they do not
fit a run or a folder."""


def test_of_every_option_of_every_command_it_is_known_whether_it_can_be_ignored():
    """A new option belongs into a row of the table, or here."""
    for path, command in commands():
        if hasattr(command, "commands"):
            continue
        name = path.partition(" ")[2]
        there = {
            _argument_or_flag(each) for each in command.params if each.param_type_name == "option" and not each.is_eager
        }
        in_rows = {flag for rule in RULES if name in rule.commands for flag in rule.flags if flag.startswith("-")}
        assert there - in_rows == HEEDED[name], name
        assert in_rows <= there, name


@pytest.mark.parametrize(("flag", "value", "ignored", "heeded"), [
    ("--shard", True, {"processes": 1}, {"processes": 2}),
    ("--processes", 2, {"processes": 2, "is_launched": True}, {"processes": 2}),
])  # fmt: skip
def test_what_depends_on_the_processes_is_refused_once_they_are_known(flag, value, ignored, heeded):
    typed = Invocation("train", {flag: value}, {flag: flag}, {})
    with pytest.raises(UsageError, match=f"^{flag} has no effect"):
        refuse_ineffective(typed, "processes", **ignored)
    refuse_ineffective(typed, "processes", **heeded)
    refuse_ineffective(Invocation("train", {flag: value}, {}, {flag: "LM_X"}), "processes", **ignored)


def test_training_in_one_process_refuses_what_is_for_several_before_it_reads_anything(capsys):
    assert run(["train", "missing.txt", "--shard"]) == 2
    assert capsys.readouterr().err.startswith("lm: --shard has no effect in one process: leave it out, or ")


def _refused_by_the_model():
    """Settings of a model that do not go with its kind, which the model refuses, whatever they come from."""
    for option in list_options(ModelConfig):
        if option.name in OF_BLOCKS and option.default in (None, False, "none", 0):
            yield {"architecture": "lstm"}, option
    scalings = {name for names in _OF_SCALING.values() for name in names}
    kinds = {name for names in _OF_ATTENTION.values() for name in names}
    for option in list_options(ModelConfig):
        for scaling, names in _OF_SCALING.items():
            if option.name in scalings - set(names):
                yield {"rope_scaling": scaling}, option
        for kind, names in _OF_ATTENTION.items():
            if option.name in kinds - set(names) and kind != "linformer":
                yield {"attention": kind}, option
        if option.name in _OF_EXPERTS:
            yield {}, option
    yield {"positions": "learned"}, next(each for each in list_options(ModelConfig) if each.name == "max_distance")
    for name in ("recurrent_attention", "max_tree_distance"):
        yield {}, next(each for each in list_options(ModelConfig) if each.name == name)


@pytest.mark.parametrize(
    ("mode", "option"), [pytest.param(*each, id=f"{each[0]} {each[1].name}") for each in _refused_by_the_model()]
)
def test_a_setting_that_a_model_would_ignore_is_refused_by_the_model(mode, option):
    value = True if option.kind is bool else option.choices[-1] if option.choices else 2
    if option.kind is float:
        value = 0.5 if option.maximum is not None else 1.5
    with pytest.raises(UsageError, match=rf"{option.flag}\b|{option.name}"):
        ModelConfig(**mode, **{option.name: value})


def test_several_options_are_named_together_and_what_the_environment_sets_by_its_variable(said, monkeypatch):
    code, error = said("generate", "missing-run", "hello", "--greedy", "--top-k", "3", "--seed", "1")
    assert code == 2
    assert error == (
        "lm: --top-k, --seed have no effect with --greedy, which always takes the most likely token: leave them out\n"
    )
    monkeypatch.setenv("LM_GREEDY", "1")
    assert said("generate", "missing-run", "hello", "--top-k", "3")[1].startswith(
        "lm: --top-k has no effect with LM_GREEDY,"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "empty.txt --no-bidirectional --best-by loss --bleu-sentences 0", "empty.txt --expert-balance 0",
        "empty.txt --no-whole-words",
    ],
)  # fmt: skip
def test_what_is_switched_off_asks_for_nothing(said, arguments):
    assert said("train", *arguments.split()) == (1, "lm: empty.txt: the corpus is empty; there is no text\n")


SETTINGS = [rule for rule in RULES if rule.stage == "settings" and "with --from" not in rule.where]


@pytest.mark.parametrize("rule", SETTINGS, ids=lambda rule: rule.where[:40])
def test_a_file_of_settings_may_name_what_has_no_effect(said, folder, rule):
    start, case = _case("train", rule)
    sections: dict[str, list[str]] = {}
    for section, config in SECTIONS.items():
        for option in list_options(config):
            if option.flag in rule.flags:
                value = _in_environment(_typed(rule, start, option.flag))
                quoted = option.kind is str
                plain = {"yes": "true", "no": "false"}.get(value, value)
                plain = f'["{value}"]' if option.kind is tuple else plain
                sections.setdefault(section, []).append(
                    f'{option.name} = "{value}"' if quoted else f"{option.name} = {plain}"
                )
    text = "".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    (folder / "settings.toml").write_text(text)
    code, error = said("train", *case.ignored.split(), "--config", "settings.toml")
    assert code == 1, error
    assert re.search("there is no text|there are no pairs|no such run|is no run's", error), error
