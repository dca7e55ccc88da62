"""A new run has a folder of its own, and writes nothing over."""

from __future__ import annotations

import pytest

from lm import run_folder
from lm.config.training import TrainingConfig
from lm.data.kinds import open_data
from lm.errors import InputError, UsageError
from lm.training import resuming, starting
from lm.training.corpus import TrainingCorpus
from lm.training.events import Step
from lm.training.resuming import resume
from lm.training.starting import start
from lm.training.trainer import train
from tests.lm.training.conftest import stop_after, sums


def test_a_run_opens_its_data_once(make_run, monkeypatch):
    """When it starts and when it goes on, longer or not."""
    opened = []
    for module in (starting, resuming):
        monkeypatch.setattr(module, "open_data", lambda *given: opened.append(given) or open_data(*given))
    for at, longer in ((3, None), (3, TrainingConfig(epochs=1, steps=None))):
        begun = make_run(f"run-{longer is None}")
        list(train(begun, stop=stop_after(at)))
        resume(begun.folder, longer=longer)
    assert len(opened) == 4


def test_a_run_that_was_killed_before_its_first_checkpoint_can_be_started_again(make_run):
    run = make_run()
    events = train(run)
    assert isinstance(next(events), Step)
    events.close()
    again = make_run(steps=7)
    assert (again.folder / "metrics.jsonl").read_text() == ""
    assert run_folder.load_config(again.folder).training.steps == 7


def test_a_run_is_never_overwritten(make_run, shards, byte_tokenizer):
    run = make_run()
    list(train(run))
    before = sums(run)
    with pytest.raises(InputError, match="holds a run already"):
        start(run.folder, run.config, TrainingCorpus(shards, byte_tokenizer))
    with pytest.raises(UsageError, match="finished after 12 steps"):
        resume(run.folder)
    assert sums(run) == before


def test_a_corpus_shorter_than_a_window_is_named(make_run):
    with pytest.raises(InputError, match="the training split has .* tokens, but one window takes 100001"):
        make_run(model={"context_length": 100_000})
