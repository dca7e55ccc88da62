"""What training makes smaller, against torch's own losses."""

import json
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.config.data import IGNORE_INDEX
from lm.config.model import ModelConfig
from lm.data.batch import Batch
from lm.hardware import Hardware
from lm.model.transformer import build_model
from lm.training.loop import train
from lm.training.objective import count_learned_tokens, summed_loss_and_nll, symmetric_kl
from tests.lm.training.conftest import loss_of, metrics_lines
from tests.tolerances import approx


def test_label_smoothing_is_trained_on_and_never_evaluated(make_run):
    plain, smooth = make_run("a", model={"dropout": 0.0}), make_run("b", model={"dropout": 0.0}, label_smoothing=0.2)
    assert loss_of(plain) == loss_of(smooth)
    batch = plain.data.batch(0)
    logits, targets = plain.model(torch.from_numpy(batch.inputs)), torch.from_numpy(batch.targets)
    expected = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.2).item()
    assert next(train(smooth)).loss == approx(expected, model=plain.model)


def test_r_drop_is_the_mean_surprisal_and_what_two_passes_disagree_by(make_run):
    """Without dropout two passes agree; with it, the loss is that of torch's own divergence."""
    model = {"dropout": 0.0, "softcap": 3.0}
    plain, calm = make_run("a", model=model), make_run("b", model=model, r_drop=5.0)
    assert next(train(calm)).loss == approx(next(train(plain)).loss, model=plain.model)
    first, second = torch.randn(3, 7), torch.randn(3, 7)
    one, other = first.log_softmax(-1), second.log_softmax(-1)
    expected = sum(F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one)))
    assert symmetric_kl(first, second).item() == approx(expected.item(), terms=21)
    wild = make_run("c", model={"dropout": 0.5}, r_drop=5.0)
    assert next(train(wild)).loss > next(train(make_run("d", model={"dropout": 0.5}))).loss


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_nll_is_the_surprisal_whatever_is_minimised(make_run, smoothing, r_drop):
    """Without dropout the first step's is that of torch's loss; the objective is above it by what is added."""
    run = make_run("run", model={"dropout": 0.0}, label_smoothing=smoothing, r_drop=r_drop)
    batch = run.data.batch(0)
    logits, targets = run.model(torch.from_numpy(batch.inputs)), torch.from_numpy(batch.targets)
    expected = F.cross_entropy(logits.transpose(1, 2), targets).item()
    step = next(train(run))
    assert step.nll == approx(expected, model=run.model)
    smoothed = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=smoothing).item()
    assert step.loss == approx(smoothed, model=run.model)
    assert json.loads(metrics_lines(run)[0])["nll"] == step.nll


@pytest.mark.parametrize(
    ("smoothing", "r_drop", "softcap", "source_loss"),
    [*product((0.0, 0.2), (0.0, 5.0), (0.0, 3.0), (None, 0.7))],
)
def test_the_loss_of_given_final_states_is_that_of_torch_in_float64(smoothing, r_drop, softcap, source_loss):
    """Summed over targets, and over source targets by their weight; R-Drop has two passes that differ."""
    rows, length, size = 3, 5, 17
    model = build_model(ModelConfig(vocab_size=size, context_length=8, d_model=16, n_layers=1, n_heads=2,
                                    softcap=softcap, init_std=0.5))  # fmt: skip
    chance = np.random.default_rng(1)
    inputs, targets, source_targets = chance.integers(size, size=(3, rows, length))
    targets[0, 3:] = targets[2, :1] = source_targets[1] = IGNORE_INDEX
    batch = Batch(inputs, targets, source_targets=None if source_loss is None else source_targets)
    states = torch.randn(2, rows, length, 16)
    seen = []

    def states_of(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return states.flatten(0, 1) if r_drop else states[0]

    loss, nll = summed_loss_and_nll(
        model, batch, Hardware("cpu", "float32", 1), states=states_of, label_smoothing=smoothing, r_drop=r_drop,
        source_loss=source_loss or 0.0,
    )  # fmt: skip
    assert torch.equal(seen[0], torch.from_numpy(inputs).repeat(2 if r_drop else 1, 1))

    weight = model.output_layer[0].detach().double()
    logits = states[: 2 if r_drop else 1].double() @ weight.T
    logits = softcap * (logits / softcap).tanh() if softcap else logits

    def expected(ids: np.ndarray, label_smoothing: float) -> float:
        once, some = torch.from_numpy(ids).flatten(), torch.from_numpy(ids).flatten() != IGNORE_INDEX
        passes = [each.flatten(0, 1)[some] for each in logits]
        total = sum(
            F.cross_entropy(each, once[some], reduction="sum", label_smoothing=label_smoothing) for each in passes
        ) / len(passes)  # fmt: skip
        if not r_drop:
            return float(total)
        one, other = (each.log_softmax(-1) for each in passes)
        both = [F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one))]
        return float(total + r_drop * sum(both) / 4)

    of_source = 0.0 if source_loss is None else source_loss * expected(source_targets, smoothing)
    assert loss.item() == approx(expected(targets, smoothing) + of_source, terms=size * rows * length, depth=4)
    plain = [
        F.cross_entropy(each.flatten(0, 1), torch.from_numpy(targets).flatten(), reduction="sum") for each in logits
    ]
    assert nll.item() == approx(float(sum(plain) / len(plain)), terms=size * rows * length, depth=4)
    learned = count_learned_tokens(batch, source_loss=0.7)
    assert learned == 12 if source_loss is None else learned == approx(12 + 0.7 * 10)
