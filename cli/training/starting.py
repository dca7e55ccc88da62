"""`lm train` without `--resume`: a new run, as its files, its settings and a budget want it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cli.console.messages import fact
from cli.flags.options import Given
from cli.training import clock
from cli.training.budget import sized
from cli.training.pacing import paced
from cli.training.pairs import PairCorpus
from cli.training.plan import describe
from cli.training.preparing import corpus_of, named_tokenizers, prepare
from cli.training.request import RUNS, NewRun, TrainingFiles
from cli.training.settings import Settings, settle
from cli.training.text import TextCorpus
from lm.base import refuse_adapted
from lm.checkpoint import load_weights
from lm.config.model import ModelConfig, check_heads_given
from lm.config.presets import DEFAULT_PRESET, DEFAULT_TRANSLATION_PRESET, is_portable
from lm.config.run import RunConfig
from lm.data.kinds import check_model
from lm.distributed.world import World
from lm.errors import UsageError
from lm.files import check_folder
from lm.hardware import found_device
from lm.interop.hugging_face.configuration import nearest_family
from lm.run_folder import find_checkpoint, refuse_existing
from lm.training.begin import start
from lm.training.compiling import check_compiler
from lm.training.corpus import TrainingCorpus
from lm.training.initial_weights import check_tokenizers, check_weights, spare_tokens
from lm.training.run import Run, refuse_trained


def start_run(files: TrainingFiles, new: NewRun, given: Given, world: World) -> Run:
    """Make a new run, its plan written down, and describe it on stderr.

    Args:
        files: to learn from.
        new: what is given besides settings.
        given: the settings.
        world: the processes that train it.

    Raises:
        InputError: a file is wrong, or the folder holds a run already.
        UsageError: the settings do not fit together, or not to the files.
    """
    corpus = corpus_of(files)
    settings = _settled(corpus, new, given, processes=world.size)
    named = (
        _new_folder(files.first, str(settings.config.preset)) if new.out is None else contextlib.nullcontext(new.out)
    )
    with named as folder:
        config = settings.config
        _check_before_work(folder, config, new, pairs=corpus.holds_pairs)
        check_heads_given(config.model, are_given=bool(files.pairs.heads))
        prepared = prepare(corpus, config, new.tokenizer or new.weights)
        _check_merges(prepared, settings, given)
        weights = None
        if new.weights:
            weights = load_weights(new.weights)
            prepared = dataclasses.replace(prepared, spare_tokens=spare_tokens(new.weights, prepared.tokenizer))
        pace = data = None
        if config.training.budget is not None:
            config, pace, data = paced(config, settings, prepared, processes=world.size)
        base = find_checkpoint(new.weights) if new.weights and config.lora else None
        run = start(
            folder,
            config,
            prepared,
            data=data,
            weights=weights,
            base=base,
            pace=pace,
            spent=clock.elapsed(),
            world=world,
        )
        describe(run, is_tuned=new.weights is not None)
        return run


def _settled(corpus: TextCorpus | PairCorpus, new: NewRun, given: Given, *, processes: int) -> Settings:
    """The settings of the run, with those of the tokens where they are prepared already."""
    preset = new.named_preset(given, pairs=corpus.holds_pairs)
    default = DEFAULT_TRANSLATION_PRESET if corpus.holds_pairs else DEFAULT_PRESET
    settings = settle(
        preset, new.config, new.weights, given, default=default, is_portable=new.is_portable,
        sized=partial(sized, corpus, processes=processes),
    )  # fmt: skip
    if isinstance(corpus, TextCorpus):
        data = corpus.data_config(settings.config.data, typed=given.typed["data"])
        settings = dataclasses.replace(settings, config=dataclasses.replace(settings.config, data=data))
    given.refuse_without_effect(
        "settings", config=settings.config, is_sized=settings.is_sized, is_prepared=corpus.prepared is not None
    )
    if not corpus.prepared:
        given.refuse_without_effect("files", files=partial(corpus.files, settings.config))
    return settings


def _check_before_work(folder: Path, config: RunConfig, new: NewRun, *, pairs: bool) -> None:
    """Refuse what would fail only after the text has been prepared."""
    refuse_existing(folder, instead=f"go on training it: lm train --resume {folder}")
    refuse_trained(folder)
    check_model(config.model, pairs=pairs)
    if is_portable(config.preset):
        _check_portable(config.model)
    if new.weights:
        check_weights(config.model, new.weights)
        if new.tokenizer:
            check_tokenizers(new.weights, *named_tokenizers(new.tokenizer, pairs=pairs))
    if config.lora:
        _check_base(new.weights)
    device = found_device(config.hardware)
    if config.training.compile:
        check_compiler(device, is_recurrent=config.model.is_recurrent)


def _check_base(weights: Path | None) -> None:
    """Refuse adapters to nothing, or to other adapters."""
    if weights is None:
        raise UsageError("adapters are trained beside the weights of a run: name it (--from), or leave out --lora")
    refuse_adapted(find_checkpoint(weights))


def _check_merges(prepared: TrainingCorpus, settings: Settings, given: Given) -> None:
    """Refuse BPE dropout that a flag asks for and no merges allow; elsewhere say that there is none."""
    if given.typed["parallel"].get("bpe_dropout"):
        prepared.check_merges()
    elif settings.fixed["parallel"].get("bpe_dropout") and not prepared.has_merges:
        fact("warning", "no BPE dropout: a tokenizer has no merges to leave out")


def _check_portable(config: ModelConfig) -> None:
    """Refuse settings that take the blocks away from what other systems run."""
    _, differing = nearest_family(config)
    if differing:
        raise UsageError(f"other systems don't run {differing}: leave it out of a portable model, or --portable")


@contextlib.contextmanager
def _new_folder(corpus: str, preset: str) -> Iterator[Path]:
    """Make a new folder under runs/, named after the corpus and the preset, and remove it if the block fails.

    Of several commands that begin together, each makes a folder of its own.
    """
    stem = Path(corpus).stem if corpus != "-" else "stdin"
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem).strip("-.") or "run"
    had_runs = RUNS.exists()
    check_folder(RUNS)
    for number in itertools.count(1):
        folder = RUNS / (f"{stem}-{preset}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):  # it holds something by now
            folder.rmdir()
            if not had_runs:
                RUNS.rmdir()
        raise
