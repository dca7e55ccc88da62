"""A new run has a folder of its own and starts from weights that fit; one process at a time trains in it."""

import pytest

from lm import run_folder
from lm.errors import InputError, UsageError
from lm.training.loop import train
from lm.training.run_log import Saved, Step
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import sums
from tests.lm.training.runs import resume_run, start_run


def test_a_run_that_was_killed_before_its_first_checkpoint_can_be_started_again(make_run):
    events = train(make_run(), stop=lambda: True)  # so that closing does not save
    assert isinstance(next(events), Step)
    events.close()
    again = make_run(steps=7)
    assert not (again.folder / "metrics.jsonl").exists()
    assert run_folder.load_config(again.folder).training.steps == 7


def test_a_run_is_never_overwritten(make_run, shards, byte_tokenizer):
    run = make_run()
    list(train(run))
    before = sums(run)
    with pytest.raises(InputError, match="holds a run already"):
        start_run(run.folder, run.config, TrainingCorpus(shards, byte_tokenizer))
    with pytest.raises(UsageError, match="at step 12 already"):
        resume_run(run.folder)
    assert sums(run) == before


@pytest.mark.parametrize("name", ["thesis.txt", "config.json", "checkpoints/epoch-3.ckpt"])
def test_the_files_of_others_are_not_overwritten(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="or other files"):
        run_folder.refuse_existing(tmp_path)


TRAINED = "run: another process is training this run"


def test_a_folder_is_for_one_run_at_a_time(make_run):
    run = make_run()
    before = (run.folder / "config.json").read_bytes()
    with pytest.raises(InputError, match=TRAINED):
        make_run(steps=7)
    events = train(run)
    assert next(event for event in events if isinstance(event, Saved))
    with pytest.raises(InputError, match=TRAINED):
        resume_run(run.folder)
    assert (run.folder / "config.json").read_bytes() == before
    assert list(events)[-1] == Saved(12, run.folder / "checkpoints" / "step-12")
