"""Refuse typed options without effect: one table of modes in which options are ignored.

Only options typed on the command line are refused. Values from the environment, files of settings, presets and stored
runs may be meant for other modes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lm.config.data import PAIR_TRAINING_FIELDS, DataConfig, FilesConfig, ParallelTextConfig
from lm.config.decoding import LENGTH_LIMITS, PENALTIES, ClassificationConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig, PerplexityConfig, ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.config.lora import LoraConfig
from lm.config.model import OF_BLOCKS, ModelConfig
from lm.config.options import list_options
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS, RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import LENGTHS
from lm.errors import UsageError
from lm.files import is_file

if TYPE_CHECKING:
    from lm.text.parallel_text import ParallelText
    from lm.text.text_files import TextFile

Stage = Literal["arguments", "settings", "files", "processes"]
"""When a mode is known: from the command line, the settings of a new run, the files, or the processes."""

_GREEDY_TEMPERATURE = 1e-6
"""A temperature below it is greedy, as in `lm.decoding.batching`."""


@dataclass(frozen=True)
class Invocation:
    """The options and arguments of a command as they were parsed.

    Attributes:
        command: its name, such as "train" or "tokenizer train".
        values: of options and arguments: from the command line, the environment, or by default; by flag, or by the name
            of an argument.
        typed: those that were typed, as they are spelled, such as --no-echo for --echo.
        variables: those that the environment set, with their variables.
        spelled: how those without a visible flag are typed, such as --set model.experts for --experts.
    """

    command: str
    values: Mapping[str, Any]
    typed: Mapping[str, str]
    variables: Mapping[str, str]
    spelled: Mapping[str, str] = field(default_factory=dict)

    def name_options(self, text: str) -> str:
        """Replace flags in a text by the variables that set them, or by what is typed instead of a hidden flag."""
        names = {**self.spelled, **self.variables}
        return re.sub(r"--[a-z0-9-]+", lambda match: names.get(match[0], match[0]), text)


@dataclass(frozen=True)
class CommandMode:
    """What is known about a command.

    Attributes:
        values: of options and arguments.
        config: settings of a new run; in the stage "settings".
        is_regularised: whether regularisation is still to be chosen, by the number of epochs.
        files: lists the named texts, in the stage "files"; called only if needed.
        holds_examples: whether completions are scored, not text.
        is_held_out: whether the held-out split of a run is scored, not files.
        holds_pairs: whether that split has sentence pairs.
        is_prepared: whether the tokens were prepared before.
        is_adapter: whether a folder to import has adapters.
        processes: number of training processes; in the stage "processes".
        is_launched: whether another launcher has started them.
    """

    values: Mapping[str, Any]
    config: RunConfig = field(default_factory=RunConfig)
    is_regularised: bool = False
    files: Callable[[], Sequence[TextFile | ParallelText]] = tuple
    holds_examples: bool = False
    is_held_out: bool = False
    holds_pairs: bool = False
    is_prepared: bool = False
    is_adapter: bool = False
    processes: int = 1
    is_launched: bool = False

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        """Return the value of an option or argument."""
        return self.values.get(name)


@dataclass(frozen=True)
class IneffectiveRule:
    """A mode of commands in which some options have no effect.

    Attributes:
        commands: with this mode.
        flags: the options, or names of arguments.
        applies: whether a command is in this mode.
        where: describes the mode, after "has no effect".
        instead: what to do.
        stage: when the mode is known.
        neutral: values that are accepted anyway, by flag.
    """

    commands: tuple[str, ...]
    flags: tuple[str, ...]
    applies: Callable[[CommandMode], bool]
    where: str
    instead: str = "leave it out"
    stage: Stage = "arguments"
    neutral: Mapping[str, Any] = field(default_factory=dict)


def refuse_ineffective(invocation: Invocation, stage: Stage, **known: Any) -> None:  # noqa: ANN401 (fields of `CommandMode`)
    """Raise UsageError if a typed option has no effect in the mode of the command, as far as that is known by now.

    What is `known` are fields of `CommandMode`.
    """
    mode = CommandMode(invocation.values, **known)
    for rule in RULES:
        if rule.stage != stage or invocation.command not in rule.commands:
            continue
        flags = [
            invocation.typed[flag]
            for flag in rule.flags
            if flag in invocation.typed and not (flag in rule.neutral and mode[flag] == rule.neutral[flag])
        ]
        if flags and rule.applies(mode):
            verb, pronoun = ("has", "it") if len(flags) == 1 else ("have", "them")
            where, instead = invocation.name_options(rule.where), invocation.name_options(rule.instead)
            instead = instead.replace("leave it out", f"leave {pronoun} out")
            raise UsageError(f"{', '.join(flags)} {verb} no effect {where}: {instead}")


def config_flags(config: type, *, but: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the flags of a config class, except those of some fields."""
    return tuple(option.flag for option in list_options(config) if option.name not in but)


def _has_greedy_temperature(mode: CommandMode) -> bool:
    """Return whether the temperature is so low that sampling is greedy."""
    temperature = mode["--temperature"]
    return temperature is not None and temperature < _GREEDY_TEMPERATURE


def _is_new(mode: CommandMode) -> bool:
    return mode["--resume"] is None


def _has_pairs(mode: CommandMode) -> bool:
    return bool(mode["--source"] or mode["--pairs"])


def _has_text(mode: CommandMode) -> bool:
    return _is_new(mode) and bool(mode["corpus"]) and not _has_pairs(mode)


def _has_tokenizer(mode: CommandMode) -> bool:
    return _is_new(mode) and bool(mode["--tokenizer"] or mode["--from"])


def _trains_no_merges(kind: str) -> bool:
    return kind != TokenizerConfig.kind


def _holds_out_nothing(mode: CommandMode) -> bool:
    """Return whether there is no validation split, as far as the settings tell."""
    try:
        fraction = float(mode.config.data.validation)
    except ValueError:
        return False
    return fraction == 0 and not mode["--validation-source"]


def _has_no_decay(mode: CommandMode) -> bool:
    training = mode.config.training
    return training.schedule in {"constant", "inverse-sqrt"} or (
        training.schedule == "wsd" and not training.decay_fraction
    )


def has_no_dropout(config: RunConfig) -> bool:
    """Return whether nothing in the model is random, so that two passes of a batch are equal."""
    model = config.model
    return not (model.dropout or model.attention_dropout or config.lora.dropout or model.gate_noise)


def _passes_are_equal(mode: CommandMode) -> bool:
    """Return whether there is no dropout, and none is still to be chosen."""
    return has_no_dropout(mode.config) and (not mode.is_regularised or mode["--dropout"] == 0)


def _has_no_bpe_dropout(mode: CommandMode) -> bool:
    """Return whether there is no BPE-dropout, and none is still to be chosen."""
    return not mode.config.parallel.bpe_dropout and (not mode.is_regularised or mode["--bpe-dropout"] == 0)


def _masks_no_text(mode: CommandMode) -> bool:
    """Return whether no tokens of a text are masked."""
    return not mode.config.model.is_masked or mode.config.data.supervised


def _translates_nothing(mode: CommandMode) -> bool:
    """Return whether `lm evaluate` scores only existing translations."""
    versus = mode["--versus"]
    return mode["--hypotheses"] is not None and mode["run"] is None and not (versus and Path(versus).is_dir())


def _has_neither_rows_nor_pairs(mode: CommandMode) -> bool:
    """Return whether no file has rows, or both sides of pairs."""
    return not any(file.holds_rows or getattr(file, "target", file) is None for file in mode.files())


def _no_rows(mode: CommandMode) -> bool:
    return not any(file.holds_rows for file in mode.files())


def _only_rows(mode: CommandMode) -> bool:
    return bool(mode["--supervised"]) or all(file.holds_rows for file in mode.files())


def _no_tables(mode: CommandMode) -> bool:
    texts: list[Any] = [getattr(file, "source", file) for file in mode.files()]
    return not any(file.format in ("csv", "tsv") for file in texts)


def _no_labels(mode: CommandMode) -> bool:
    return not any(getattr(file, "supervised", False) for file in mode.files())


def _no_folder(mode: CommandMode) -> bool:
    """Return whether all corpora are files named one by one."""
    named = [*(mode["corpus"] or ()), *(mode["files"] or ()), *(mode["--source"] or ()), *(mode["--target"] or ()),
             *(mode["--pairs"] or ()), *(mode["--file"] or ())]  # fmt: skip
    return bool(named) and all(name == "-" or Path(name).is_file() for name in named)


def _is_page_of_text(mode: CommandMode) -> bool:
    return bool(mode["--out"]) and Path(mode["--out"]).suffix == ".html" and mode["--target"] is None


_SAMPLING = config_flags(SamplingConfig, but=(*LENGTH_LIMITS, "token_healing"))
_DRAWING = config_flags(SamplingConfig, but=(*PENALTIES, "greedy", "stop", *LENGTH_LIMITS, "token_healing"))
"""Sampling flags that a search ignores; biases and penalties change its scores too."""
_CUTTING = tuple(flag for flag in _DRAWING if flag != "--temperature")
_TOKENIZER = config_flags(TokenizerConfig)
_PARALLEL = config_flags(ParallelTextConfig)
_PAIR_COLUMNS = config_flags(ParallelTextConfig, but=PAIR_TRAINING_FIELDS)
_PLANNED = tuple(
    option.flag
    for section, config in SECTIONS.items()
    for option in list_options(config)
    if option.name not in (*LENGTHS, *CHANGEABLE_ON_RESUME.get(section, ()))
)
"""Settings that are fixed for a run."""
_OF_NEW_RUNS = ("--out", "--preset", "--depth", "--portable", "--config", "--from", "--tokenizer")
_SHARED = ("--shard", "--batch-tokens", "--micro-batch-size", "--checkpoint-activations")
_WITH_DEFAULTS_OF_BLOCKS = tuple(
    option.flag
    for option in list_options(ModelConfig)
    if option.name in OF_BLOCKS and option.default not in (None, False, "none", 0)
)
"""Settings of transformer blocks, ignored by recurrent models, which refuse non-default values."""
_OF_EXPERTS = ("--experts-per-token", "--expert-every", "--expert-balance")
_OTHER_REPORTS = ("--csv", "--per-token", "--show", "--html", "--versus", "--compare-dtypes")
_TRAIN, _GENERATE, _TRANSLATE, _PERPLEXITY = ("train",), ("generate",), ("translate",), ("perplexity",)
_CONTINUING = (*_GENERATE, "chat")
_PREPARE, _INSPECT = ("prepare",), ("tokenizer inspect",)
_TRAINS_TOKENIZER = ("prepare", "tokenizer train")
_READING = ("train", "prepare", "tokenizer train", "tokenizer inspect", "perplexity")

_OF_TRAINING_RUNS = (
    IneffectiveRule(
        _TRAIN, (*_OF_NEW_RUNS, *_PLANNED), lambda mode: mode["--resume"] is not None,
        "with --resume, which resumes a run as it was planned", "leave it out, or start a new run",
    ),
    IneffectiveRule(
        _TRAIN,
        (*_PARALLEL, "--decoder-only", "--best-by", "--bleu-sentences", "--source-loss", "--validation-source",
         "--validation-target"),
        _has_text, "on a corpus of text, as it is for pairs (--source, --target)",
        neutral={"--best-by": "loss", "--bleu-sentences": 0, "--source-loss": 0},
    ),
    IneffectiveRule(
        _TRAIN,
        ("--separator", "--text-column", "--label-column", "--supervised", "--keep-line-ends", "--strip-gutenberg",
         "--skip-unreadable"),
        _has_pairs,
        "on pairs (--source, --target, --pairs), as it is for text",
    ),
    IneffectiveRule(
        _TRAIN, ("--validation",), lambda mode: _has_pairs(mode) and bool(mode["--validation-source"]),
        "beside --validation-source, which says what is held out", "give one of the two",
    ),
    IneffectiveRule(
        _TRAIN, _PAIR_COLUMNS, lambda mode: _has_pairs(mode) and not mode["--pairs"],
        "without --pairs, as it names columns of both sides",
    ),
    IneffectiveRule(
        _TRAIN, ("--source-language", "--target-language"),
        lambda mode: _has_pairs(mode) and not mode.config.parallel.bidirectional and not _has_tokenizer(mode),
        "on a model of one direction with a tokenizer of its own", "leave it out, or give --bidirectional",
        stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--separate-vocabularies",), _has_tokenizer,
        "where there is a tokenizer already (--tokenizer, --from), as it is for training them",
    ),
    IneffectiveRule(
        _TRAIN, _TOKENIZER, _has_tokenizer,
        "where there is a tokenizer already (--tokenizer, --from), as it is for training one",
    ),
    IneffectiveRule(
        _TRAIN, ("--portable",), lambda mode: _is_new(mode) and mode["--from"] is not None,
        "with --from, which brings the blocks of its run",
    ),
    IneffectiveRule(
        _TRAIN, config_flags(FilesConfig), lambda mode: mode.is_prepared,
        "on tokens that are prepared already, as it is for reading files", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, _TOKENIZER, lambda mode: mode.is_prepared,
        "on tokens that are prepared already, as it is for training a tokenizer", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, config_flags(TokenizerConfig, but=("kind",)),
        lambda mode: _trains_no_merges(mode.config.tokenizer.kind),
        "on a tokenizer of characters or bytes (--kind), as it is for BPE", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--init-std", "--zero-init"),
        lambda mode: bool(mode["--from"]) and not mode.config.lora and not mode.config.model.is_masked,
        "with --from, which brings all weights", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, _WITH_DEFAULTS_OF_BLOCKS, lambda mode: mode.config.model.is_recurrent,
        "on recurrent layers (--architecture), as it is for transformer blocks", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--rope-base", "--rotary-fraction"),
        lambda mode: not mode.config.model.is_recurrent and mode.config.model.positions != "rotary",
        "without rotary positions (--positions)", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, _OF_EXPERTS, lambda mode: not mode.config.model.experts, "without --experts",
        "leave it out, or say how many there are", stage="settings",
        neutral={"--expert-balance": 0},
    ),
    IneffectiveRule(
        _TRAIN, config_flags(LoraConfig, but=("rank",)), lambda mode: not mode.config.lora, "without adapters (--lora)",
        "leave it out, or give their rank", stage="settings", neutral={"--lora-dropout": 0},
    ),
    IneffectiveRule(
        _TRAIN, ("--lora-alpha",), lambda mode: mode.config.lora.alpha == 0,
        "if it is 0, as adapters then add nothing", "give more than 0", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--masking-rate", "--whole-words"), _masks_no_text,
        "where no tokens are masked", "leave it out, or give --objective masked, without --supervised",
        stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--bpe-dropout-until",), _has_no_bpe_dropout,
        "without --bpe-dropout", "leave it out, or give that too", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--batch-size",), lambda mode: mode.config.training.batch_tokens is not None,
        "beside --batch-tokens", "give one of the two", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--decay-fraction",), lambda mode: mode.config.training.schedule != "wsd",
        "except with --schedule wsd", "leave it out, or give that", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--final-learning-rate-fraction",), _has_no_decay,
        "with a --schedule that does not fall to a given end",
        "leave it out, or give --schedule cosine, linear or wsd", stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--r-drop",), _passes_are_equal,
        "without dropout, as its two passes are the same", "leave it out, or give --dropout", stage="settings",
        neutral={"--r-drop": 0},
    ),
    IneffectiveRule(
        _TRAIN, ("--patience",), lambda mode: mode.config.training.evaluate_every == 0,
        "without evaluations before the end (--evaluate-every 0)", "leave it out, or evaluate more often",
        stage="settings",
    ),
    IneffectiveRule(
        _TRAIN, ("--patience", "--best-by", "--bleu-sentences"), _holds_out_nothing,
        "without held-out data (--validation 0)", "leave it out, or hold some out", stage="settings",
        neutral={"--best-by": "loss", "--bleu-sentences": 0},
    ),
    IneffectiveRule(
        _TRAIN, ("--best-by",), lambda mode: mode.config.training.bleu_sentences == 0,
        "where no sentence is translated for BLEU (--bleu-sentences=0)", "leave it out, or translate some",
        stage="settings", neutral={"--best-by": "loss"},
    ),
    IneffectiveRule(
        _TRAIN, _PAIR_COLUMNS, lambda mode: _has_pairs(mode) and _no_rows(mode),
        "where pairs are in plain text, which has no named columns", stage="files",
    ),
    IneffectiveRule(
        _TRAIN, ("--processes",), lambda mode: mode.is_launched,
        "where another launcher, such as torchrun, has started the processes", stage="processes",
    ),
    IneffectiveRule(
        _TRAIN, ("--shard",), lambda mode: mode.processes == 1,
        "in one process", "leave it out, or start several (--processes, or torchrun)", stage="processes",
    ),
)  # fmt: skip

_OF_TRANSLATIONS = (
    *config_flags(ScoringConfig), *config_flags(TranslationConfig, but=("n_best", "read_ahead")), "--versus", "--to",
    "--out",
)  # fmt: skip
_OF_CLASSIFIERS = *config_flags(ClassificationConfig, but=("top_k",)), "--labels"
_OF_EXAMPLE_FILES = *config_flags(FilesConfig), "--text-column", "--label-column"
_TRANSLATED = "--source", "--target", "--pairs", "--heads", "--hypotheses"
"""What `lm evaluate` scores, or has translated."""

_OF_FILES = (
    IneffectiveRule(
        _PERPLEXITY, (*config_flags(PerplexityConfig), "--separator", "--text-column", *_OTHER_REPORTS),
        lambda mode: mode.holds_pairs, "on the pairs that the run held out, as it is for text", stage="files",
    ),
    IneffectiveRule(
        _PERPLEXITY, (*config_flags(FilesConfig), *config_flags(DataConfig, but=("validation", "supervised"))),
        lambda mode: mode.is_held_out, "on the split that the run held out", "leave it out, or name files",
        stage="files",
    ),
    IneffectiveRule(
        _READING, ("--text-column",), _no_rows,
        "on plain text: no file is JSON, CSV, TSV or Parquet", "leave it out, or give --format", stage="files",
    ),
    IneffectiveRule(
        _READING, ("--skip-malformed",), _has_neither_rows_nor_pairs,
        "on plain text, which has no rows", stage="files",
    ),
    IneffectiveRule(
        _READING, ("--header",), _no_tables,
        "where no file is CSV or TSV", "leave it out, or give --format", stage="files",
    ),
    IneffectiveRule(
        _READING, ("--label-column",), lambda mode: _no_labels(mode) and not mode.holds_examples,
        "except on examples", "leave it out, or give --supervised", stage="files",
    ),
    IneffectiveRule(
        _READING, ("--separator", "--strip-gutenberg"), _only_rows,
        "on JSON, CSV, TSV and Parquet, where each row is a document", stage="files",
    ),
    IneffectiveRule(
        _READING, ("--include", "--exclude"), _no_folder,
        "on files that are named one by one", "leave it out, or name a folder or glob",
    ),
    IneffectiveRule(
        _PERPLEXITY, ("--stride", "--per-token", "--show", "--html", "--versus", "--compare-dtypes"),
        lambda mode: mode.holds_examples, "on examples, of which completions are scored",
        "leave it out, or name what holds the text (--text-column)", stage="files",
    ),
    IneffectiveRule(
        ("import",), ("--from",), lambda mode: not mode.is_adapter, "on a folder without adapters",
        "leave it out, or name a folder with PEFT adapters", stage="files",
    ),
)  # fmt: skip

_OF_GENERATION = (
    IneffectiveRule(
        _GENERATE, (*_SAMPLING, "--interactive", "--top-alternatives", "--draft", "--batch-size"),
        lambda mode: mode["--beam"] is not None, "with --beam, which searches for the most probable text",
        neutral={"--top-alternatives": 0},
    ),
    IneffectiveRule(
        _GENERATE, ("--stats",), lambda mode: mode["--beam"] is not None and not mode["--prompts"],
        "with --beam on one prompt",
    ),
    IneffectiveRule(
        _CONTINUING, ("--temperature", *_CUTTING), lambda mode: bool(mode["--greedy"]),
        "with --greedy, which always takes the most likely token", neutral={"--temperature": 0},
    ),
    IneffectiveRule(
        _CONTINUING, _CUTTING, _has_greedy_temperature,
        "with --temperature 0, which always takes the most likely token",
    ),
    IneffectiveRule(
        _CONTINUING, ("--min-tokens",), lambda mode: bool(mode["--ignore-eos"]),
        "with --ignore-eos, which continues to --max-tokens", neutral={"--min-tokens": 0},
    ),
    IneffectiveRule(
        _GENERATE, ("--length-penalty",), lambda mode: mode["--beam"] is None, "without --beam",
        "leave it out, or give that too",
    ),
    IneffectiveRule(
        _GENERATE, ("--json", "--samples", "--top-alternatives", "--echo", "--batch-size"),
        lambda mode: bool(mode["--interactive"]), "with --interactive, which writes one text to the terminal",
        neutral={"--samples": 1, "--top-alternatives": 0},
    ),
    IneffectiveRule(
        _GENERATE, ("--top-alternatives",), lambda mode: not mode["--json"], "without --json",
        "leave it out, or give that too", neutral={"--top-alternatives": 0},
    ),
    IneffectiveRule(
        _GENERATE, ("--echo",), lambda mode: bool(mode["--json"]), "with --json, which has the prompt in a field",
    ),
    IneffectiveRule(
        _GENERATE, ("prompt", "--prompt-file", "--interactive", "--draft"), lambda mode: mode["--prompts"] is not None,
        "with --prompts, which names many prompts",
    ),
    IneffectiveRule(
        _GENERATE, ("--out", "--processes"), lambda mode: mode["--prompts"] is None,
        "without --prompts, as it is for many prompts", "leave it out, or give --prompts FILE",
        neutral={"--processes": 1},
    ),
    IneffectiveRule(
        _GENERATE, ("--batch-size",), lambda mode: mode["--draft"] is not None,
        "with --draft, which draws one sample at a time",
    ),
    IneffectiveRule(
        _GENERATE, ("--batch-size",), lambda mode: mode["--prompts"] is None and mode["--samples"] == 1,
        "on a single sample", "leave it out, or ask for several (-n, --prompts)",
    ),
    IneffectiveRule(
        _GENERATE, ("--token-healing",), lambda mode: mode.holds_examples,
        "on a run trained on examples, whose prompts end with a token", stage="files",
    ),
    IneffectiveRule(
        _TRANSLATE, _DRAWING, lambda mode: not mode["--sample"], "in a search, which draws nothing",
        "leave it out, or give --sample",
    ),
    IneffectiveRule(
        _TRANSLATE, ("--beam", "--length-penalty", "--coverage-penalty", "--greedy"),
        lambda mode: bool(mode["--sample"]) and not _has_greedy_temperature(mode),
        "with --sample, which draws translations",
    ),
    IneffectiveRule(
        _TRANSLATE, (*_CUTTING, "--greedy"), lambda mode: bool(mode["--sample"]) and _has_greedy_temperature(mode),
        "with --temperature 0, which draws nothing",
    ),
    IneffectiveRule(
        _TRANSLATE, ("--beam",), lambda mode: bool(mode["--greedy"]) and not mode["--sample"],
        "with --greedy, which is a beam of 1", neutral={"--beam": 1},
    ),
    IneffectiveRule(
        _TRANSLATE, config_flags(AttentionConfig), lambda mode: mode["--attention"] is None,
        "without --attention", "leave it out, or give that too",
    ),
    IneffectiveRule(
        _TRANSLATE, ("--batch-tokens",), lambda mode: mode["--read-ahead"] == 1,
        "with --read-ahead 1, which translates line by line",
    ),
    IneffectiveRule(("fill",), ("--batch-size",), lambda mode: mode["text"] not in (None, "-"), "on a single TEXT"),
)  # fmt: skip

_OF_MEASURING = (
    IneffectiveRule(
        _PERPLEXITY,
        (*config_flags(PerplexityConfig), *config_flags(DataConfig, but=("validation", "supervised")),
         "--skip-unreadable",
         *_OTHER_REPORTS),
        lambda mode: bool(mode["--source"] or mode["--pairs"]), "on pairs, as it is for text",
    ),
    IneffectiveRule(
        _PERPLEXITY, ("--to",), lambda mode: not (mode["--source"] or mode["--pairs"]), "on text, as it is for pairs",
    ),
    IneffectiveRule(
        (*_PERPLEXITY, "evaluate"), _PAIR_COLUMNS, lambda mode: not mode["--pairs"],
        "without --pairs", "leave it out, or give that too",
    ),
    IneffectiveRule(
        _PERPLEXITY, ("--dtype", "--processes"), lambda mode: bool(mode["--compare-dtypes"]),
        "with --compare-dtypes, which times all types in one process", neutral={"--processes": 1},
    ),
    IneffectiveRule(
        ("evaluate",), (*_TRANSLATED, *_OF_TRANSLATIONS), lambda mode: bool(mode["files"]),
        "on labelled examples (FILE), as it is for translations",
    ),
    IneffectiveRule(
        ("evaluate",), _OF_EXAMPLE_FILES, lambda mode: mode.is_held_out, "on the split that the run held out",
        "leave it out, or name files", stage="files",
    ),
    IneffectiveRule(
        ("evaluate",), _OF_TRANSLATIONS, lambda mode: mode.is_held_out and not mode.holds_pairs,
        "on the examples that the run held out, as it is for translations", stage="files",
    ),
    IneffectiveRule(
        ("evaluate",), _OF_CLASSIFIERS, lambda mode: mode.holds_pairs,
        "on the pairs that the run held out, as it is for labelled examples", stage="files",
    ),
    IneffectiveRule(
        ("evaluate",), (*_OF_CLASSIFIERS, "--text-column", "--label-column"),
        lambda mode: any(mode[flag] for flag in _TRANSLATED),
        "on translations, as it is for labelled examples", "leave it out, or name a file of examples",
    ),
    IneffectiveRule(
        ("evaluate",), config_flags(FilesConfig),
        lambda mode: any(mode[flag] for flag in _TRANSLATED) and not mode["--pairs"],
        "on files of lines", "leave it out, or give --pairs",
    ),
    IneffectiveRule(
        ("evaluate",),
        (*config_flags(TranslationConfig, but=("n_best", "read_ahead")), *config_flags(HardwareConfig), "--to",
         "--source"),
        _translates_nothing, "on finished translations (--hypotheses)", "leave it out, or name a run that translates",
    ),
    IneffectiveRule(
        ("attention",), ("--layer", "--head"), _is_page_of_text, "on a page, which has all layers and heads (--out)",
    ),
    IneffectiveRule(
        ("average",), ("--last",), lambda mode: len(mode["runs"] or ()) > 1,
        "where checkpoints are named one by one",
    ),
    IneffectiveRule(
        ("info",), ("--processes",), lambda mode: mode["target"] is None, "without a run or preset", "name one",
    ),
    IneffectiveRule(
        ("info",), _SHARED, lambda mode: mode["--processes"] is None, "without --processes",
        "say how many processes share that",
    ),
    IneffectiveRule(("plot",), ("--width", "--height"), lambda mode: mode["--out"] is not None, "on a picture (--out)"),
)  # fmt: skip

_OF_TOKENS = (
    IneffectiveRule(
        _PREPARE,
        (*_TOKENIZER, *config_flags(FilesConfig), *config_flags(DataConfig),
         "--tokenizer", "--special", "--unknown", "--part", "--processes"),
        lambda mode: bool(mode["--join"]), "with --join, as it is for making partitions",
    ),
    IneffectiveRule(
        _PREPARE, (*_TOKENIZER, "--special", "--unknown"), lambda mode: mode["--tokenizer"] is not None,
        "with --tokenizer, as it is for training one",
    ),
    IneffectiveRule(
        _TRAINS_TOKENIZER, config_flags(TokenizerConfig, but=("kind",)),
        lambda mode: _trains_no_merges(mode["--kind"] or "bpe"),
        "on a tokenizer of characters or bytes (--kind), as it is for BPE",
    ),
    IneffectiveRule(
        _TRAINS_TOKENIZER, ("--unknown",), lambda mode: (mode["--kind"] or "bpe") != "char",
        "on a tokenizer that knows every text", "leave it out, or give --kind char",
    ),
    IneffectiveRule(
        _INSPECT, (*config_flags(FilesConfig), *config_flags(DataConfig, but=("validation",))),
        lambda mode: not mode["--file"] and not is_file(mode["text"]), "without files", "leave it out, or name some",
    ),
)  # fmt: skip

RULES = (*_OF_TRAINING_RUNS, *_OF_FILES, *_OF_GENERATION, *_OF_MEASURING, *_OF_TOKENS)
"""All modes in which an option has no effect; the first that applies is reported."""
