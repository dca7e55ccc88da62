"""Training: the numbers of a plain loop, exact resumption, honest evaluation, and nothing saved is ever lost."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pytest
import torch
import torch.nn.functional as F

from lm import checkpoint, files, run_folder
from lm.config.data import DataConfig
from lm.config.training import TrainingConfig
from lm.data.shards import open_split
from lm.data.windows.prepare import prepare
from lm.errors import InputError, TrainingError, UsageError
from lm.model.cost import training_flops
from lm.model.transformer import build_model
from lm.optimization.optimizers import make_optimizers, training_bytes
from lm.optimization.schedules import learning_rate, share_of_batch
from lm.text.files import text_files
from lm.training.evaluation import validation_loss
from lm.training.events import Evaluation, Sample, Saved, Step, Stopped
from lm.training.history import curves
from lm.training.objective import disagreement
from lm.training.planning import planned_steps
from lm.training.resuming import resume
from lm.training.starting import start
from lm.training.trainer import train
from tests.lm.training.conftest import stop_after


def loss_of(run) -> tuple[float, int]:
    run.model.eval()
    return validation_loss(run)


def sums(run) -> dict[str, str]:
    found = run_folder.find_checkpoint(run.folder, which="last")
    return json.loads((found / "manifest.json").read_text())["sha256"]


def journal(run) -> list[str]:
    return (run.folder / "metrics.jsonl").read_text().split("\n")


@pytest.mark.parametrize("fields", [{}, {"value_residual": True, "embedding_shortcut": True, "softcap": 3.0}])
def test_equals_a_plain_loop(make_run, fields):
    """AdamW, warm-up, clipping and the mean loss, written out with torch alone."""
    run = make_run(model={"dropout": 0.0, **fields}, steps=8, micro_batch_size=2, clip=0.5)
    config = run.config.training
    model = build_model(run.config.model, seed=config.seed)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    kept = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    expected = []
    for step in range(8):
        batch = run.data.batch(6 * step)
        logits = model(torch.from_numpy(batch.inputs))
        loss = F.cross_entropy(logits.transpose(1, 2), torch.from_numpy(batch.targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config=config, steps=8)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    losses = [event.loss for event in train(run) if isinstance(event, Step)]
    assert losses == pytest.approx(expected, abs=1e-5)
    for ours, theirs in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("stop", "optimizer"), [(1, "adamw"), (4, "adamw"), (5, "muon"), (7, "adamw")])
def test_resuming_equals_never_having_stopped(make_run, stop, optimizer):
    """Weights, optimizer and journal, byte for byte: with dropout, accumulation, growing batches, a falling rate."""
    settings = {"micro_batch_size": 4, "optimizer": optimizer, "batch_warmup": 6}
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    stopped = list(train(parts, stop=stop_after(stop)))
    assert isinstance(stopped[-1], Stopped)
    resumed = resume(parts.folder)
    assert resumed.state.step == stop
    list(train(resumed))
    assert sums(whole)["model.safetensors"] == sums(resumed)["model.safetensors"]
    assert sums(whole)["optimizer.safetensors"] == sums(resumed)["optimizer.safetensors"]
    assert journal(whole) == journal(resumed)
    assert sum("gradient_norm" in line for line in journal(whole)) == 12


@pytest.mark.parametrize(
    ("stops", "settings"), [([5], {}), ([3, 5, 5, 10], {"checkpoint_every": 0, "sample": ["ba du"], "ema": 0.8})]
)
def test_an_evaluation_that_stopping_puts_off_comes_first_on_resuming(make_run, stops, settings):
    """The journal and the best checkpoint are as if the run had never stopped, however often it does."""
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    last = 0
    for step in stops:
        events = list(train(parts, stop=stop_after(step - last)) if step > last else put_off_again(parts))
        assert not any(isinstance(event, Evaluation) and event.step == step for event in events)
        parts, last = resume(parts.folder), step
    list(train(parts))
    assert journal(whole) == journal(parts)
    for which in ("best", "last"):
        ours, theirs = (run_folder.find_checkpoint(run.folder, which=which) for run in (whole, parts))
        assert ours.name == theirs.name
        assert files.sha256(ours / "model.safetensors") == files.sha256(theirs / "model.safetensors")
    assert dataclasses.replace(parts.state, seconds=0.0) == dataclasses.replace(whole.state, seconds=0.0)


def put_off_again(run):
    """A process that is killed in the evaluation that was put off, after having noted what it brought."""
    events = train(run)
    assert isinstance(next(events), Evaluation)
    events.close()
    return []


def test_patience_may_run_out_on_resuming(make_run):
    settings = {"learning_rate": 0.0, "steps": 100, "evaluate_every": 3, "patience": 2}
    run = make_run(**settings)
    assert list(train(run, stop=stop_after(9)))[-1] == Stopped(9)
    assert list(train(resume(run.folder)))[-1] == Stopped(9, patience_ran_out=True)
    with pytest.raises(UsageError, match="when --patience ran out"):
        resume(run.folder)


def test_resuming_an_older_checkpoint_forgets_what_came_later(make_run):
    run = make_run(checkpoint_every=4, keep=0)
    events = list(train(run))
    first = next(event.folder for event in events if isinstance(event, Saved) and event.step == 4)
    before = sums(run)
    list(train(resume(first)))
    assert sums(run)["model.safetensors"] == before["model.safetensors"]
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_accumulation_changes_nothing(make_run):
    losses = []
    for index, micro_batch_size in enumerate((None, 1, 4)):
        run = make_run(str(index), model={"dropout": 0.0}, micro_batch_size=micro_batch_size)
        losses.append([event.loss for event in train(run) if isinstance(event, Step)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)


def test_dropout_depends_on_the_seed_and_the_step_alone(make_run):
    first, again, other = make_run("a"), make_run("b"), make_run("c", seed=1)
    torch.manual_seed(123)
    one = [event.loss for event in train(first) if isinstance(event, Step)]
    torch.manual_seed(456)
    assert one == [event.loss for event in train(again) if isinstance(event, Step)]
    assert one != [event.loss for event in train(other) if isinstance(event, Step)]


def test_evaluation_scores_the_whole_split(make_run, shards):
    run = make_run()
    nats, predicted = loss_of(run)
    split = open_split(shards, "validation")
    tokens = torch.from_numpy(split.read(0, len(split)))
    model = run.model.double().eval()
    expected = 0.0
    with torch.no_grad():
        for at in range(1, len(tokens)):
            window = (at - 1) // 16 * 16
            expected -= model(tokens[None, window:at])[0, -1].log_softmax(-1)[tokens[at]].item()
    assert predicted == len(tokens) - 1
    assert nats == pytest.approx(expected, rel=1e-5)


def test_it_learns(make_run):
    """The text has an entropy of about 0.2 nats a byte; a uniform guess costs 5.5."""
    run = make_run(model={"dropout": 0.0}, steps=240, batch_size=16, learning_rate=1e-2, evaluate_every=80)
    losses = [event.loss for event in train(run) if isinstance(event, Evaluation)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5
    assert run.state.best_loss == losses[-1]


def test_events_and_pointers(make_run):
    run = make_run(evaluate_every=5, checkpoint_every=4)
    events = list(train(run))
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, 13))
    evaluations = [event for event in events if isinstance(event, Evaluation)]
    assert [event.step for event in evaluations] == [5, 10, 12]
    best = min(evaluations, key=lambda event: event.loss).step
    saved = {event.step for event in events if isinstance(event, Saved)}
    assert saved == {4, 8, 12} | {event.step for event in evaluations if event.is_best}
    assert run_folder.find_checkpoint(run.folder, which="last").name == "step-12"
    assert run_folder.find_checkpoint(run.folder, which="best").name == f"step-{best}"
    bits = evaluations[-1].loss * evaluations[-1].tokens / math.log(2) / run.data.validation_bytes
    assert evaluations[-1].bits_per_byte == pytest.approx(bits)


def test_a_run_is_never_overwritten(make_run, shards, byte_tokenizer):
    run = make_run()
    list(train(run))
    before = sums(run)
    with pytest.raises(InputError, match="holds a run already"):
        start(run.folder, run.config, byte_tokenizer, shards)
    with pytest.raises(UsageError, match="finished after 12 steps"):
        resume(run.folder)
    assert sums(run) == before


def test_a_finished_run_can_be_trained_on(make_run):
    run = make_run(schedule="constant")
    list(train(run))
    longer = resume(run.folder, longer=TrainingConfig(steps=20))
    list(train(longer))
    whole = make_run("whole", schedule="constant", steps=20)
    list(train(whole))
    assert sums(longer)["model.safetensors"] == sums(whole)["model.safetensors"]


def test_a_loss_that_is_no_number_stops_the_run_and_spares_its_checkpoints(make_run):
    run = make_run()
    list(train(run, stop=stop_after(4)))
    before, broken = sums(run), resume(run.folder)
    with torch.no_grad():
        broken.model.embedding.tokens.weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match="the loss is nan .* at step 5"):
        list(train(broken))
    assert sums(run) == before


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_never_saved(make_run, broken, ema):
    """The loss of the step was finite, but not what the step made: neither an evaluation nor a checkpoint takes it."""
    for evaluate_every, problem in ((6, "the validation loss is nan at step 6"), (7, "is no longer finite at step 6")):
        run = make_run(str(evaluate_every), evaluate_every=evaluate_every, ema=ema, checkpoint_every=3)
        events = train(run)
        next(event for event in events if isinstance(event, Step) and event.step == 6)
        before = sums(run)
        for weights in (run.model.state_dict(), run.average.weights if run.average else {}):
            for value in weights.values():
                value[0] = broken
        with pytest.raises(TrainingError, match=problem):
            list(events)
        assert sums(run) == before
        assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-3"}
        assert not (run.folder / "best").exists()
        assert run.state.best_loss is None
        assert all(math.isfinite(value) for curve in curves(run.folder).values() for value in curve.values)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_vectors_are_not_decayed(make_run, optimizer):
    run = make_run(model={"bias": True, "norm": "layernorm", "positions": "learned"})
    optimizers = make_optimizers(run.model, TrainingConfig(steps=1, weight_decay=0.3, optimizer=optimizer))
    groups = [group for each in optimizers for group in each.param_groups]
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in run.model.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "norm" in name else 0.3)


@pytest.mark.parametrize(
    ("given", "steps"),
    [({"steps": 7}, 7), ({"epochs": 2.0}, 25), ({"epochs": 0.01}, 1), ({"tokens": 1281}, 11),
     ({"tokens": 1280, "batch_tokens": 250}, 6)],
)  # fmt: skip
def test_length_in_steps_epochs_or_tokens(make_run, given, steps):
    """In an epoch of 100 windows of 16 tokens."""
    run = make_run(**{"batch_size": 8, "steps": None, **given})
    run.data.samples, run.data.tokens, run.data.steps_per_epoch = 100, 1600, 100 / run.data.batch(0).rows
    assert planned_steps(run.config.training, run.data, pace=1.0) == steps


def test_a_corpus_shorter_than_a_window_is_named(make_run):
    with pytest.raises(InputError, match="the training split has .* tokens, but one window takes 100001"):
        make_run(model={"context_length": 100_000})


def test_the_last_and_the_best_checkpoints_are_kept(make_run):
    run = make_run(steps=20, evaluate_every=0, checkpoint_every=2, keep=2)
    list(train(run))
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-18", "step-20"}
    (run.folder / "best").write_text("step-18\n")
    list(train(resume(run.folder, longer=TrainingConfig(steps=40)), stop=stop_after(5)))
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-18", "step-24", "step-25"}


def test_patience_ends_a_run_that_learns_nothing(make_run):
    run = make_run(learning_rate=0.0, steps=100, evaluate_every=3, patience=2)
    events = list(train(run))
    assert events[-1] == Stopped(9, patience_ran_out=True)
    assert run_folder.load_state(run_folder.find_checkpoint(run.folder, which="last")).finished
    with pytest.raises(UsageError, match="ended after 9 of 100 steps, when --patience ran out"):
        resume(run.folder)


def test_label_smoothing_is_trained_on_and_never_evaluated(make_run):
    plain, smooth = make_run("a", model={"dropout": 0.0}), make_run("b", model={"dropout": 0.0}, label_smoothing=0.2)
    assert loss_of(plain) == loss_of(smooth)
    batch = plain.data.batch(0)
    logits, targets = plain.model(torch.from_numpy(batch.inputs)), torch.from_numpy(batch.targets)
    expected = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.2).item()
    assert next(train(smooth)).loss == pytest.approx(expected, abs=1e-5)


def test_samples_are_drawn_the_same_way_and_change_nothing(make_run):
    plain, shown = make_run("a"), make_run("b", sample=["ba du"])
    list(train(plain))
    samples = [event for event in train(shown) if isinstance(event, Sample)]
    assert [(sample.step, sample.prompt) for sample in samples] == [(5, "ba du"), (10, "ba du"), (12, "ba du")]
    assert sums(plain)["model.safetensors"] == sums(shown)["model.safetensors"]


def test_starting_from_weights(make_run, shards, byte_tokenizer, tmp_path):
    first = make_run("first")
    list(train(first))
    weights = first.model.state_dict()
    second = start(tmp_path / "second", first.config, byte_tokenizer, shards, weights=weights)
    assert loss_of(second) == loss_of(first)
    assert second.state.step == 0
    other = dataclasses.replace(first.config, model=dataclasses.replace(first.config.model, d_model=16))
    with pytest.raises(UsageError, match="don't fit this model"):
        start(tmp_path / "third", other, byte_tokenizer, shards, weights=weights)
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("fails_at", [5, 12])
def test_an_evaluation_that_fails_loses_no_training_and_is_made_up_for(make_run, monkeypatch, fails_at):
    whole, run = make_run("whole"), make_run("run")
    list(train(whole))

    def fail(run):
        if run.state.step == fails_at:
            raise MemoryError
        return validation_loss(run)

    with monkeypatch.context() as patch:
        patch.setattr("lm.training.evaluation.validation_loss", fail)
        with pytest.raises(MemoryError):
            list(train(run))
    assert run_folder.load_state(run_folder.find_checkpoint(run.folder, which="last")).step == fails_at
    resumed = resume(run.folder)
    list(train(resumed))
    assert resumed.state.finished
    assert journal(resumed) == journal(whole)
    assert (run.folder / "best").read_text() == (whole.folder / "best").read_text()


def test_the_moving_average_is_evaluated_and_saved_and_resumes_exactly(make_run):
    """Against the average written out, with the decay that grows to its value."""
    whole, parts = make_run("whole", ema=0.8), make_run("parts", ema=0.8)
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    for event in train(whole):
        if isinstance(event, Step):
            decay = min(0.8, (1 + event.step) / (10 + event.step))
            for name, value in whole.model.state_dict().items():
                expected[name] = decay * expected[name] + (1 - decay) * value
    last = run_folder.find_checkpoint(whole.folder, which="last")
    saved = checkpoint.load_weights(last)
    assert all(torch.allclose(saved[name], expected[name], atol=1e-6) for name in saved)
    assert not torch.equal(saved["embedding.tokens.weight"], whole.model.embedding.tokens.weight)
    list(train(parts, stop=stop_after(7)))
    resumed = resume(parts.folder)
    list(train(resumed))
    assert sums(resumed) | {"state.json": 0, "config.json": 0} == sums(whole) | {"state.json": 0, "config.json": 0}
    evaluated = resumed.state.best_loss
    resumed.model.load_state_dict(saved)
    nats, predicted = loss_of(resumed)
    assert evaluated == pytest.approx(nats / predicted, rel=1e-6)


@pytest.mark.parametrize("ema", [0.0, 0.99])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_takes_the_memory_that_is_foreseen(make_run, optimizer, ema):
    run = make_run(steps=1, optimizer=optimizer, ema=ema)
    list(train(run))
    weights = [*run.model.parameters()]
    average = [] if run.average is None else run.average.weights.values()
    states = [tensor for one in run.optimizers for state in one.state.values() for tensor in state.values()]
    kept = [*weights, *weights, *average, *(tensor for tensor in states if tensor.ndim)]  # counts of steps aside
    assert sum(4 * tensor.numel() for tensor in kept) == training_bytes(run.config.model, run.config.training)


def test_r_drop_takes_twice_the_arithmetic(make_run):
    plain, dropped = (make_run(name, steps=2, r_drop=r_drop) for name, r_drop in (("a", 0.0), ("b", 1.0)))
    list(train(plain))
    steps = [event for event in train(dropped) if isinstance(event, Step)]
    assert dropped.state.flops == sum(step.flops for step in steps) == 2 * plain.state.flops
    assert dropped.state.tokens == plain.state.tokens


def test_r_drop_is_the_mean_surprisal_and_what_two_passes_disagree_by(make_run):
    """Without dropout two passes agree; with it, the loss is that of torch's own divergence."""
    model = {"dropout": 0.0, "softcap": 3.0}
    plain, calm = make_run("a", model=model), make_run("b", model=model, r_drop=5.0)
    assert next(train(calm)).loss == pytest.approx(next(train(plain)).loss, abs=1e-5)
    first, second = torch.randn(3, 7), torch.randn(3, 7)
    one, other = first.log_softmax(-1), second.log_softmax(-1)
    expected = sum(F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one)))
    assert disagreement(first, second).item() == pytest.approx(expected.item(), rel=1e-5)
    wild = make_run("c", model={"dropout": 0.5}, r_drop=5.0)
    assert next(train(wild)).loss > next(train(make_run("d", model={"dropout": 0.5}))).loss


def test_the_dropout_mask_differs_at_every_step_and_for_every_seed(make_run):
    """The losses of one batch under weights that stay: only the masks can make them differ."""
    losses, batch = [], make_run("of the batch").data.batch(0)
    for seed in range(3):
        run = make_run(str(seed), model={"dropout": 0.5}, seed=seed, learning_rate=0.0, steps=5, evaluate_every=0)
        run.model.load_state_dict(build_model(run.config.model, seed=0).state_dict())
        run.data.batch = lambda *_, **_of_it: batch
        losses += [event.loss for event in train(run) if isinstance(event, Step)]
    assert len(losses) == len(set(losses)) == 15


def test_patience_of_evaluations_after_every_step(make_run):
    run = make_run(learning_rate=0.0, steps=100, evaluate_every=1, patience=3)
    assert list(train(run))[-1] == Stopped(4, patience_ran_out=True)


def test_the_state_and_the_journal_are_the_sums_of_what_happened(make_run):
    run = make_run(batch_warmup=6, sample=["ba"], evaluate_every=5)
    events = list(train(run))
    steps = [event for event in events if isinstance(event, Step)]
    rows = [run.data.batch(0, share=share_of_batch(step, config=run.config.training)).rows for step in range(12)]
    assert rows[0] < rows[-1]
    assert [step.tokens for step in steps] == [16 * count for count in rows]
    assert [step.flops for step in steps] == [training_flops(run.config.model, rows=r, length=16) for r in rows]
    assert run.state == run_folder.load_state(run_folder.find_checkpoint(run.folder, which="last"))
    assert (run.state.step, run.state.samples, run.state.tokens) == (12, sum(rows), 16 * sum(rows))
    assert run.state.flops == pytest.approx(sum(step.flops for step in steps))
    assert run.state.seconds == pytest.approx(sum(step.seconds for step in steps))
    assert run.epoch == sum(rows) / run.data.samples
    metrics, timings = (
        [json.loads(line) for line in (run.folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "timings.jsonl")
    )
    evaluations = [event for event in events if isinstance(event, Evaluation)]
    assert [line for line in metrics if "loss" in line] == [
        {"step": step.step, "loss": step.loss, "learning_rate": step.learning_rate, "tokens": step.tokens,
         "gradient_norm": step.gradient_norm, "epoch": sum(rows[: step.step]) / run.data.samples}
        for step in steps
    ]  # fmt: skip
    assert [line for line in metrics if "validation_loss" in line] == [
        {"step": event.step, "validation_loss": event.loss, "validation_bits_per_byte": event.bits_per_byte,
         "validation_tokens": event.tokens} for event in evaluations
    ]  # fmt: skip
    assert [line for line in metrics if "prompt" in line] == [
        {"step": event.step, "prompt": "ba", "sample": event.text} for event in events if isinstance(event, Sample)
    ]
    assert [line for line in timings if "seconds" in line] == [
        {"step": step.step, "seconds": step.seconds, "tokens_per_second": step.tokens / step.seconds} for step in steps
    ]
    assert [(line["step"], line["evaluation_seconds"]) for line in timings if "evaluation_seconds" in line] == [
        (event.step, event.seconds) for event in evaluations
    ]


def test_what_a_run_was_started_on_is_named_where_it_is_not_the_corpus_given(
    make_run, shards, byte_tokenizer, tmp_path
):
    own, other = tmp_path / "own", tmp_path / "other"
    shutil.copytree(shards, own)
    (tmp_path / "novel.txt").write_text("ba du " * 300)
    prepare(text_files([str(tmp_path / "novel.txt")]), byte_tokenizer, DataConfig(), other)
    run = start(tmp_path / "another run", make_run().config, byte_tokenizer, own)
    list(train(run, stop=stop_after(2)))
    message = r"novel.txt: not the corpus that this run was started on; that was .*text.txt, and lm train --resume"
    with pytest.raises(InputError, match=message):
        resume(run.folder, data=other)
    shutil.rmtree(own)
    with pytest.raises(InputError, match="own: the tokens of this run are gone; name its corpus again"):
        resume(run.folder)
    shutil.copytree(other, own)
    for data in (None, other):
        with pytest.raises(InputError, match="not the .* that this run was started on; name its corpus again"):
            resume(run.folder, data=data)
    assert resume(run.folder, data=shards).state.step == 2
