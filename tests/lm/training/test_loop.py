"""Training: the numbers of a plain loop, exact resumption, honest evaluation, and nothing saved is ever lost."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from lm import run_folder
from lm.corpus import RaggedArray, open_split
from lm.data import Batch
from lm.data.pairs import PairLayout
from lm.model import build_model
from lm.training.loop import train
from lm.training.optimizers import learning_rate
from lm.training.parallel import MicroBatch
from lm.training.run import Run, batch_flops
from lm.training.run_log import Evaluation, Saved, Step
from tests.lm.training.conftest import loss_of
from tests.tolerances import approx


@pytest.mark.parametrize("fields", [{}, {"value_residual": True, "softcap": 3.0}, {"members": 2}])
def test_equals_a_plain_loop(make_run, fields):
    """AdamW, warm-up, clipping and the mean loss, written out with torch alone."""
    run = make_run(model={"dropout": 0.0, "n_layers": 2, **fields}, steps=8, micro_batch_size=2, clip=0.5)
    config = run.config.training
    model = build_model(run.config.model, seed=config.seed)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    kept = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    expected, norms = [], list[float]()
    for step in range(8):
        losses = []
        for number, member in enumerate(model.members):
            batch = run.data.member_batch(6 * step, number)
            logits = member(torch.from_numpy(batch.inputs))
            losses.append(F.cross_entropy(logits.transpose(1, 2), torch.from_numpy(batch.targets)))
            losses[-1].backward()
        first = [weight for name, weight in model.named_parameters() if not name.startswith("ensemble.")]
        members = [first, *(other.parameters() for other in model.ensemble)]
        norms.append(sum(float(torch.nn.utils.clip_grad_norm_(each, 0.5)) for each in members) / len(members))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config=config, steps=8)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(sum(losses).item() / len(losses))
    steps = [event for event in train(run) if isinstance(event, Step)]
    assert [event.loss for event in steps] == approx(expected, model=model)
    assert [event.gradient_norm for event in steps] == approx(norms, model=model, depth=3)
    for ours, theirs in zip(run.model.parameters(), model.parameters(), strict=True):
        # Adam divides gradients by their own size, so that rounding of small ones is a part of a whole step.
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("members", [1, 2])
def test_evaluation_scores_the_whole_split(make_run, shards, members):
    """An ensemble by the mean of its members' probabilities."""
    run = make_run(model={"members": members})
    nats, predicted = loss_of(run)
    split = open_split(shards, "validation")
    tokens = torch.from_numpy(split.read(0, len(split)))
    model = run.model.double().eval()
    expected = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 16):
            window = tokens[start : start + 17]
            mean = sum(member(window[None, :-1])[0].softmax(-1) for member in model.members) / members
            expected -= sum(mean[at, token].log().item() for at, token in enumerate(window[1:]))
    assert predicted == len(tokens) - 1
    assert nats == approx(expected, model=model)


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


def balance(model, inputs):
    """The losses of the gates of a model that reads these inputs, from what they are given and their weights alone."""
    losses = []

    def note(gate, arguments, _):
        probabilities = (arguments[0] @ gate.score.weight.T).softmax(-1)
        chosen = F.one_hot(probabilities.argmax(-1), probabilities.shape[1]).double()
        losses.append(probabilities.shape[1] * (chosen.mean(0) * probabilities.mean(0)).sum())

    hooks = [block.feed_forward.gate.register_forward_hook(note) for block in model.decoder.blocks]
    logits = model(inputs)
    for hook in hooks:
        hook.remove()
    return logits, sum(losses)


def test_experts_are_balanced_by_the_mean_of_the_parts_of_a_batch_by_their_targets(make_run):
    """Six rows in parts of four and two: gradients of a plain loop, in which each part counts for its rows."""
    shape = {"dropout": 0.0, "n_layers": 2, "experts": 4}
    run = make_run(model=shape, steps=1, micro_batch_size=4, expert_balance=0.5, clip=0.0)
    model = build_model(run.config.model, seed=0).double()
    batch = run.data.batch(0)
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    for rows in (slice(0, 4), slice(4, 6)):
        logits, unevenness = balance(model, inputs[rows])
        nats = F.cross_entropy(logits.transpose(1, 2), targets[rows], reduction="sum")
        (nats / targets.numel() + 0.5 * len(inputs[rows]) / 6 * unevenness).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert next(train(run)).gradient_norm == approx(norm.item(), model=model)


def counted_flops(run: Run, batch: Batch) -> float:
    """What torch counts in a pass forward and back, in which it leaves fused attention out."""
    with FlopCounterMode(display=False) as counter:
        run.parallel.backward(MicroBatch(batch, is_real=True, is_last=True), learned=1.0)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["text", "examples", "pairs in one stack"])
def test_flops_are_those_that_torch_counts(make_run, kind):
    """The output layer is left out where nothing is predicted: in prompts, in sources and in padding."""
    run = make_run(model={"dropout": 0.0, "context_length": 32}, steps=1)
    ids = np.arange(1, 33)
    rows = [ids[:31], ids[:16], ids[:24]]
    sides = RaggedArray.from_rows(rows), RaggedArray.from_rows([row[:5] for row in rows])
    batch = {
        "text": Batch(np.tile(ids, (3, 1)), np.tile(ids, (3, 1))),
        "examples": Batch.from_rows(rows, [ids[: len(row)] > len(row) - 3 for row in rows]),
        "pairs in one stack": PairLayout(decoder_only=True).batch(*sides, start=0),
    }[kind]
    pairs = 2 * 32 * run.config.model.n_layers * batch.rows * batch.inputs.shape[1] ** 2 / 2
    assert batch_flops(run.config, batch) - 6 * pairs == pytest.approx(counted_flops(run, batch), rel=0.01)
