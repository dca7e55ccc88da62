"""Sides take turns."""

from __future__ import annotations

from lm.benchmark.timing import alternate
from lm.hardware import Hardware, timed


def test_sides_take_turns_and_the_first_round_does_not_count():
    done: list[str] = []

    def side(name: str):
        def work() -> float:
            done.append(name)
            return float(len(done))

        return work

    assert alternate([side("ours"), side("theirs")], seconds=0) == [[3.0, 4.0]]
    assert done == ["ours", "theirs"] * 2


def test_rounds_go_on_while_there_is_time():
    hardware = Hardware("cpu", "float32", 1)
    rounds = alternate([lambda: timed(lambda: sum(range(1000)), hardware)], seconds=0.05)
    assert len(rounds) > 1
    assert all(seconds > 0 for (seconds,) in rounds)
