"""What training makes smaller, against torch's own losses."""

import json

import pytest
import torch
import torch.nn.functional as F

from lm.training.loop import train
from lm.training.objective import symmetric_kl
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
