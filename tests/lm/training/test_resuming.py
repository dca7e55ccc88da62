"""A resumed run is as if it had never stopped, and what came after an older checkpoint is another branch."""

import dataclasses
import json
import shutil

import pytest
from safetensors.torch import save_file

from lm import checkpoint, files, run_folder
from lm.config.data import DataConfig
from lm.config.training import TrainingConfig
from lm.errors import InputError, UsageError
from lm.optim.averaging import latest_checkpoints
from lm.text.text_files import find_text_files
from lm.training.events import Evaluation, Saved, Step, StoppedEarly
from lm.training.loop import train
from lm.training.startup import resume_run, start_run
from lm.training.training_corpus import TrainingCorpus
from tests.lm.corpus.preparing import prepare
from tests.lm.training.conftest import metrics_lines, stop_after, sums

EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_capacity": 1.0, "gate_noise": 1.0}


@pytest.mark.parametrize(
    ("stop", "optimizer", "model"),
    [
        (1, "adamw", {}), (7, "adamw", {}), (4, "adamw", EXPERTS), (5, "muon", EXPERTS),
        pytest.param(4, "adamw", {}, marks=pytest.mark.slow), pytest.param(5, "muon", {}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_resuming_equals_never_having_stopped(make_run, stop, optimizer, model):
    """Weights, optimizer and metrics, byte for byte: with dropout, accumulation, growing batches, a falling rate."""
    settings = {"micro_batch_size": 4, "optimizer": optimizer, "batch_warmup": 6, "model": model}
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    stopped = list(train(parts, stop=stop_after(stop)))
    assert isinstance(stopped[-1], StoppedEarly)
    resumed = resume_run(parts.folder)
    assert resumed.state.step == stop
    list(train(resumed))
    assert sums(whole)["model.safetensors"] == sums(resumed)["model.safetensors"]
    assert sums(whole)["optimizer.safetensors"] == sums(resumed)["optimizer.safetensors"]
    assert metrics_lines(whole) == metrics_lines(resumed)
    assert sum("gradient_norm" in line for line in metrics_lines(whole)) == 12


@pytest.mark.medium
@pytest.mark.parametrize(
    ("stops", "settings"), [([5], {}), ([3, 5, 5, 10], {"checkpoint_every": 0, "sample": ["ba du"], "ema": 0.8})]
)
def test_an_evaluation_that_stopping_puts_off_comes_first_on_resuming(make_run, stops, settings):
    """The metrics and the best checkpoint are as if the run had never stopped, however often it does."""
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    last = 0
    for step in stops:
        events = list(train(parts, stop=stop_after(step - last)) if step > last else put_off_again(parts))
        assert not any(isinstance(event, Evaluation) and event.step == step for event in events)
        parts, last = resume_run(parts.folder), step
    list(train(parts))
    assert metrics_lines(whole) == metrics_lines(parts)
    for which in ("best", "last"):
        ours, theirs = (run_folder.find_checkpoint(run.folder, which=which) for run in (whole, parts))
        assert ours.name == theirs.name
        assert files.sha256(ours / "model.safetensors") == files.sha256(theirs / "model.safetensors")
    assert dataclasses.replace(parts.state, training_seconds=0.0) == dataclasses.replace(
        whole.state, training_seconds=0.0
    )


def put_off_again(run):
    """A process that is killed in the evaluation that was put off, after having noted what it brought."""
    events = train(run)
    assert isinstance(next(events), Evaluation)
    events.close()
    return []


def test_patience_may_run_out_on_resuming(make_run):
    settings = {"learning_rate": 0.0, "steps": 100, "evaluate_every": 3, "patience": 2}
    run = make_run(**settings)
    assert list(train(run, stop=stop_after(9)))[-1] == StoppedEarly(9)
    assert list(train(resume_run(run.folder)))[-1] == StoppedEarly(9, patience_ran_out=True)
    with pytest.raises(UsageError, match="when patience ran out"):
        resume_run(run.folder)


def test_resuming_an_older_checkpoint_forgets_what_came_later(make_run):
    run = make_run(checkpoint_every=4, keep=0)
    events = list(train(run))
    first = next(event.folder for event in events if isinstance(event, Saved) and event.step == 4)
    before = sums(run)
    list(train(resume_run(first)))
    assert sums(run)["model.safetensors"] == before["model.safetensors"]
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_a_finished_run_can_be_trained_on(make_run):
    run = make_run(schedule="constant")
    list(train(run))
    longer = resume_run(run.folder, new_length=TrainingConfig(steps=20))
    list(train(longer))
    whole = make_run("whole", schedule="constant", steps=20)
    list(train(whole))
    assert sums(longer)["model.safetensors"] == sums(whole)["model.safetensors"]


def test_what_a_run_was_started_on_is_named_where_it_is_not_the_corpus_given(
    make_run, shards, byte_tokenizer, tmp_path
):
    own, other = tmp_path / "own", tmp_path / "other"
    shutil.copytree(shards, own)
    (tmp_path / "novel.txt").write_text("ba du " * 300)
    prepare(find_text_files([str(tmp_path / "novel.txt")]), byte_tokenizer, DataConfig(), other)
    run = start_run(tmp_path / "another run", make_run().config, TrainingCorpus(own, byte_tokenizer))
    list(train(run, stop=stop_after(2)))
    message = r"novel.txt: not the corpus that this run was started on; that was .*text.txt, and resuming needs no"
    with pytest.raises(InputError, match=message):
        resume_run(run.folder, data=other)
    shutil.rmtree(own)
    with pytest.raises(InputError, match="own: the tokens of this run are gone; name its corpus again"):
        resume_run(run.folder)
    shutil.copytree(other, own)
    for data in (None, other):
        with pytest.raises(InputError, match="not the .* that this run was started on; name its corpus again"):
            resume_run(run.folder, data=data)
    assert resume_run(run.folder, data=shards).state.step == 2


def test_a_run_killed_while_it_replaced_its_only_checkpoint_continues(make_run):
    run = make_run()
    list(train(run, stop=stop_after(3)))
    only = run.folder / "checkpoints" / "step-3"
    only.rename(only.with_name(".step-3.replaced"))
    assert resume_run(run.folder).state.step == 3


@pytest.fixture
def branching(make_run):
    """A run of 12 steps with a checkpoint every second one, and evaluations of which the last was best."""
    run = make_run(checkpoint_every=2, keep=0, learning_rate=1e-2, evaluate_every=2)
    list(train(run))
    return run


def names(run, step=0) -> list[str]:
    return [folder.name for folder in run_folder.checkpoints_after(run.folder, step)]


def contents(run) -> dict[str, bytes]:
    return {name: (run.folder / name).read_bytes() for name in ("metrics.jsonl", "timings.jsonl", "best", "last")}


def test_what_came_after_an_older_checkpoint_goes_when_the_new_branch_has_saved(branching):
    before = names(branching)
    resumed = resume_run(branching.folder / "checkpoints" / "step-4", new_length=TrainingConfig(steps=9))
    assert [folder.name for folder in resumed.stale_checkpoints] == ["step-6", "step-8", "step-10", "step-12"]
    events = train(resumed)
    assert isinstance(next(events), Step)
    assert names(branching) == before
    assert next(event for event in events if isinstance(event, Saved)).step == 6
    assert names(branching) == ["step-2", "step-4", "step-6"]
    list(events)
    assert names(branching) == ["step-2", "step-4", "step-6", "step-8", "step-9"]
    assert run_folder.find_checkpoint(branching.folder).name == f"step-{resumed.state.best_step}"
    assert [folder.name for folder in latest_checkpoints(branching.folder, 3)] == ["step-6", "step-8", "step-9"]


def test_a_branch_that_is_killed_before_it_has_saved_has_lost_nothing(branching):
    before, checkpoints = contents(branching), names(branching)
    events = train(resume_run(branching.folder / "checkpoints" / "step-4"))
    assert isinstance(next(events), Step)
    events.close()
    assert names(branching) == checkpoints
    with pytest.raises(UsageError, match="finished after 12 steps"):
        resume_run(branching.folder)
    assert contents(branching) == before


def test_a_branch_stopped_at_once_has_its_own_best(branching):
    """The best of the other branch went with it, so it is what the older checkpoint knew as the best."""
    run = resume_run(branching.folder / "checkpoints" / "step-4")
    known = run.state.best_step
    list(train(run, stop=stop_after(1)))
    assert names(run) == ["step-2", "step-4", "step-5"]
    assert run_folder.find_checkpoint(run.folder).name == f"step-{known}"
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().split("\n")[:-1]]
    assert steps == [1, 2, 2, 3, 4, 4, 5]


def test_a_branch_whose_best_is_gone_finds_its_own(make_run):
    """What has been removed since, as `--keep` does, cannot be the best; nothing was better than the first here."""
    run = make_run(checkpoint_every=2, keep=0, learning_rate=0.0, evaluate_every=2)
    list(train(run))
    checkpoint.remove_checkpoint(run.folder / "checkpoints" / "step-2")
    branch = resume_run(run.folder / "checkpoints" / "step-4")
    assert branch.state.best_step is None
    list(train(branch, stop=stop_after(1)))
    assert run_folder.find_checkpoint(run.folder).name == "step-5"
    list(train(resume_run(run.folder), stop=stop_after(2)))
    assert run_folder.find_checkpoint(run.folder).name == "step-6"


@pytest.mark.parametrize("average", [0.0, 0.5])
@pytest.mark.parametrize("damage", ["missing", "of another shape"])
def test_weights_of_another_model_are_not_gone_on_with(make_run, average, damage):
    """Not even where the sums were made to fit, as by somebody who has edited a checkpoint."""
    run = make_run(ema=average)
    list(train(run, stop=stop_after(3)))
    folder = run_folder.find_checkpoint(run.folder, which="last")
    weights = checkpoint.load_weights(folder)
    name = next(iter(weights))
    weights.update({} if damage == "missing" else {name: weights[name][:3, :3].contiguous()})
    if damage == "missing":
        del weights[name]
    save_file(weights, folder / "model.safetensors")
    sums = {path.name: files.sha256(path) for path in folder.iterdir() if path.name != "manifest.json"}
    files.write_json(folder / "manifest.json", {"sha256": sums})
    with pytest.raises(InputError, match=r"its weights are not of this run's model; resume from another checkpoint"):
        resume_run(run.folder)


EDITS = [
    ("training", "learning_rate", 0.5), ("training", "seed", 7), ("training", "schedule", "linear"),
    ("model", "dropout", 0.25), ("data", "validation", "0.3"), ("hardware", "threads", 3),
    ("plan", "dtype", "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "value"), EDITS)
def test_settings_that_were_edited_are_refused_by_name(make_run, section, name, value):
    run = make_run("run", steps=4)
    list(train(run, stop=stop_after(2)))
    path = run.folder / "config.json"
    before = path.read_bytes()
    settings = json.loads(before)
    was, settings[section][name] = settings[section][name], value
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError) as raised:
        resume_run(run.folder)
    assert str(raised.value).startswith(f"{path}: differs")
    assert f"{section}.{name} is {value!r} and was {was!r};" in str(raised.value)
    assert json.loads(path.read_text()) == settings
    path.write_bytes(before)
    assert resume_run(run.folder).state.step == 2


def test_how_long_a_run_is_and_how_it_is_computed_may_differ(make_run):
    """A resumed run writes both before its first checkpoint, and may be killed then."""
    run = make_run("run", steps=4)
    list(train(run, stop=stop_after(2)))
    path = run.folder / "config.json"
    settings = json.loads(path.read_text())
    settings["training"] |= {"steps": None, "budget": "9m", "schedule": "wsd", "checkpoint_activations": True}
    settings["plan"] |= {"steps": 99, "threads": 2, "processes": 2}
    path.write_text(json.dumps(settings))
    assert resume_run(run.folder).plan.steps == 4
    path.unlink()
    assert resume_run(run.folder).plan.steps == 4


def test_settings_that_are_damaged_are_refused_with_what_restores_them(make_run):
    run = make_run("run", steps=4)
    list(train(run, stop=stop_after(2)))
    (run.folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json: not JSON .*restore it: cp .*step-2/config.json"):
        resume_run(run.folder)
