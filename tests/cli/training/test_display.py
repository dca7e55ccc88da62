"""Training on a terminal and in a pipe: what is drawn fits and shows samples as they are."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from cli.training.display import TrainingDisplay
from lm.training.events import DecayStarted, Evaluation, Replanned, Sample, Step, StoppedEarly


def test_under_a_budget_the_number_of_steps_is_that_of_the_last_forecast(capsys):
    forecasts = iter([40, 35, 38])
    display = TrainingDisplay(
        steps=3, first_step=0, matmul_flops_per_second=1e11, left=lambda: 5.0, forecast=lambda: next(forecasts)
    )
    with display:
        for number in (1, 2, 3):
            display.show(Step(number, 5.0, learning_rate=1e-3, tokens=1, flops=1.0, seconds=1.0, gradient_norm=1.0))
    shown = re.findall(r"^step +(\d+)/(\d+)", capsys.readouterr().err, re.M)
    assert shown == [("1", "40"), ("2", "35"), ("3", "38")]


def test_a_sample_shows_where_the_model_began(capsys):
    display = TrainingDisplay(steps=10, first_step=0, matmul_flops_per_second=1e11)
    display.show(Sample(10, "고양이는", " 가\n\n서둘러"))
    display.show(Sample(10, "Hi\nthere", "ed"))
    lines = [line.partition("10  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ['"고양이는" continues " 가 서둘러"', '"Hi there" continues "ed"']


@pytest.mark.parametrize("width", [60, 80, 200])
def test_training_fits_the_terminal_with_room_for_an_echoed_key(width, terminal):
    screen = terminal(width)
    with TrainingDisplay(steps=20_000, first_step=0, matmul_flops_per_second=1e11) as display:
        for step in range(1, 40):
            display.show(Step(step, loss=5.0 / step, learning_rate=1e-3, tokens=4096, flops=1e9, seconds=0.1,
                              gradient_norm=1.0))  # fmt: skip
        display.progress.refresh()
        drawn = [line for line in screen.lines if "/20,000" in line]
        assert drawn
        assert max(map(cell_len, drawn)) <= width - len("^C")
        assert "left" in drawn[-1]
        assert "…" not in drawn[-1]
        display.show(Sample(40, "Once", "[/b] 고양이 :smile: \x1b[2J and then on and on " * 5))
        display.show(Evaluation(40, loss=1.5, bits_per_byte=0.7, tokens=9, seconds=1.0, is_best=True, bleu=21.5))
    assert max(map(cell_len, screen.lines)) <= width
    assert screen.getvalue().count("[/b]") == 5
    assert screen.getvalue().count(":smile:") == 5
    assert "\x1b[2J" not in screen.getvalue()
    assert "BLEU 21.50" in " ".join(" ".join(screen.lines).split())


def test_a_run_out_of_patience_names_its_criterion(capsys):
    for criterion, text in (("loss", "the validation loss has stopped falling"), ("bleu", "BLEU has stopped rising")):
        with TrainingDisplay(steps=3, first_step=0, matmul_flops_per_second=1e9) as display:
            display.show(StoppedEarly(2, patience_ran_out=True, criterion=criterion))
        assert f"{text} (--patience)" in capsys.readouterr().err


def test_an_evaluation_shows_the_least_and_the_most_that_an_expert_took(capsys):
    display = TrainingDisplay(steps=10, first_step=0, matmul_flops_per_second=1e11)
    use = {"decoder.blocks.0.feed_forward": [0.25, 0.75], "decoder.blocks.1.feed_forward": [0.9, 0.1]}
    display.show(Evaluation(10, loss=1.5, bits_per_byte=0.7, tokens=9, seconds=1.0, is_best=False, expert_use=use))
    assert "bits/byte  experts 10% to 90%\n" in capsys.readouterr().err


def test_what_is_shown_of_a_step_is_its_surprisal(capsys):
    """Not the loss, which label smoothing and R-Drop add to; of an event without it, the loss."""
    display = TrainingDisplay(steps=10, first_step=0, matmul_flops_per_second=1e11)
    for nll, shown in ((2.5, "nll 2.5000"), (None, "nll 7.0000")):
        display.show(
            Step(10, loss=7.0, learning_rate=1e-3, tokens=9, flops=1e9, seconds=0.1, gradient_norm=1.0, nll=nll)
        )
        assert shown in capsys.readouterr().err


def test_what_is_left_of_a_budget_is_its_own_clocks(capsys):
    """Not what the steps so far let expect."""
    display = TrainingDisplay(steps=1000, first_step=0, matmul_flops_per_second=1e11, left=lambda: 171.0)
    display.show(Step(50, loss=5.0, learning_rate=1e-3, tokens=1, flops=1.0, seconds=9.0, gradient_norm=1.0))
    assert "2:51 left" in capsys.readouterr().err


def test_why_the_plan_changes_is_said(capsys):
    display = TrainingDisplay(steps=300, first_step=0, matmul_flops_per_second=1e11)
    display.show(Replanned(12, steps=84, seconds=0.5, measured=0.14))
    display.show(DecayStarted(40, 80, on_plateau=True, restored_step=25))
    display.show(DecayStarted(42, 84))
    assert display.steps == 84
    replanned, plateau, clock = capsys.readouterr().err.splitlines()
    assert "a step takes 0.5 s, and 0.14 s were measured: about 84 steps in all" in replanned
    assert "no longer falls: back to the weights of step 25, the best; the learning rate decays from here" in plateau
    assert "no longer" not in clock
