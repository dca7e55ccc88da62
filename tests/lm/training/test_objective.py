"""What training makes smaller, against torch's own losses."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.config.run_config import IGNORE_INDEX, TrainingConfig
from lm.data import Batch
from lm.hardware import Hardware
from lm.model import build_model
from lm.training.objective import Objective
from tests.tolerances import approx


@pytest.mark.parametrize(
    ("smoothing", "r_drop", "softcap", "temperature"),
    [*product((0.0, 0.2), (0.0, 5.0), (0.0, 3.0), (None,)), *product((0.0, 0.2), (0.0, 5.0), (3.0,), (1.0, 2.0))],
)
def test_the_loss_of_given_final_states_is_that_of_torch_in_float64(smoothing, r_drop, softcap, temperature):
    """Summed over targets; R-Drop has two passes that differ; with a temperature there are two teachers."""
    rows, length, size = 3, 5, 17
    model = build_model(ModelConfig(vocab_size=size, context_length=8, d_model=16, n_layers=1, n_heads=2,
                                    softcap=softcap, init_std=0.5))  # fmt: skip
    chance = np.random.default_rng(1)
    inputs, targets = chance.integers(size, size=(2, rows, length))
    targets[0, 3:] = targets[2, :1] = IGNORE_INDEX
    states = torch.randn(2, rows, length, 16)
    seen = []

    def states_of(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return states.flatten(0, 1) if r_drop else states[0]

    distillation = {} if temperature is None else {"distillation_temperature": temperature, "distillation_weight": 0.3}
    config = TrainingConfig(steps=1, label_smoothing=smoothing, r_drop=r_drop, **distillation)
    teachers = [
        build_model(ModelConfig(vocab_size=size, context_length=8, d_model=width, n_layers=1, n_heads=1, init_std=0.5),
                    seed=width).eval()
        for width in (() if temperature is None else (8, 12))
    ]  # fmt: skip
    objective = Objective(model, Hardware("cpu", "float32", 1), config, states=[states_of], teachers=teachers)
    loss, (_, nll) = objective(Batch(inputs, targets))
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
        if teachers:
            ids_read = torch.from_numpy(inputs)
            read = [each(ids_read).detach().flatten(0, 1)[some].double() for each in teachers]
            taught = sum((logits_of_one / temperature).softmax(-1) for logits_of_one in read)
            distilled = sum(
                F.cross_entropy(each / temperature, taught / len(teachers), reduction="sum") for each in passes
            ) / len(passes)  # fmt: skip
            total = 0.7 * total + 0.3 * temperature**2 * distilled
        if not r_drop:
            return float(total)
        one, other = (each.log_softmax(-1) for each in passes)
        both = [F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one))]
        return float(total + r_drop * sum(both) / 4)

    assert loss.item() == approx(expected(targets, smoothing), terms=size * rows * length, depth=4)
    plain = [
        F.cross_entropy(each.flatten(0, 1), torch.from_numpy(targets).flatten(), reduction="sum") for each in logits
    ]
    assert nll.item() == approx(float(sum(plain) / len(plain)), terms=size * rows * length, depth=4)
