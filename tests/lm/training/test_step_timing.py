"""Sides take turns."""

import torch

from lm.hardware import Hardware, time_work
from lm.training import step_timing
from lm.training.step_timing import scaled_step_timer, time_interleaved


def test_sides_take_turns_and_the_first_round_does_not_count():
    done: list[str] = []

    def side(name: str):
        def work() -> float:
            done.append(name)
            return float(len(done))

        return work

    assert time_interleaved([side("ours"), side("theirs")], seconds=0) == [[3.0, 4.0]]
    assert done == ["ours", "theirs"] * 2


def test_rounds_go_on_while_there_is_time():
    hardware = Hardware("cpu", "float32", 1)
    rounds = time_interleaved([lambda: time_work(lambda: sum(range(1000)), hardware)], seconds=0.05)
    assert len(rounds) > 1
    assert all(seconds > 0 for (seconds,) in rounds)


def test_a_step_is_worked_out_from_one_pass_with_one_update(monkeypatch):
    ticks = iter([1.0, 3.0])
    monkeypatch.setattr(step_timing, "synchronized_time", lambda hardware: next(ticks))
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step() -> float:
        optimizer.step()
        return 5.0

    whole = scaled_step_timer(step, [optimizer], Hardware("cpu", "float32", 1), batch_scale=4)
    assert whole() == 4 * (5 - 2) + 2
    assert weight.tolist() == [0.5] * 3
