"""A run in progress has one plan, and its rate, epoch and errors follow from how far it has come."""

import dataclasses

import pytest

from lm import run_folder
from lm.optim.schedules import learning_rate
from lm.training.run import divergence_error


def test_a_run_has_one_plan_which_is_written_down(make_run):
    run = make_run()
    assert run.plan is run.config.plan
    assert run_folder.load_config(run.folder) == run.config
    run.config = dataclasses.replace(run.config, plan=dataclasses.replace(run.plan, steps=7))
    assert run.plan.steps == 7
    run.write_config()
    assert run_folder.load_config(run.folder).plan == run.plan


def test_rate_and_epoch_follow_from_the_steps_taken(make_run):
    run = make_run(learning_rate=0.01)
    for step in (0, 2, 11):
        run.state = dataclasses.replace(run.state, step=step, samples=6 * step)
        assert run.learning_rate == learning_rate(step, config=run.config.training, steps=12)
        assert run.epoch == 6 * step / run.data.samples
        assert not run.is_complete
    run.state = dataclasses.replace(run.state, step=12)
    assert run.is_complete


@pytest.mark.parametrize(("step", "named"), [(None, 3), (8, 8)])
def test_what_is_no_number_is_named_with_its_step(make_run, step, named):
    run = make_run()
    run.state = dataclasses.replace(run.state, step=3)
    message = str(divergence_error(run, "the loss is nan", step=step))
    assert message.startswith(f"{run.folder}: the loss is nan at step {named}; saved checkpoints are untouched")
