"""A run in progress: its rate, epoch and errors follow from how far it has come; what steps and evaluations cost."""

import dataclasses

from lm import run_folder
from lm.optim.schedules import learning_rate


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
