"""Training on a terminal and in a pipe: progress goes to stderr and fits, a summary to stdout if it is asked for."""

import errno
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.cells import cell_len

from cli.console.curves import sparkline
from cli.main import run
from cli.training.display import TrainingDisplay
from cli.training.running import ShownSpeedMeter
from lm.config.run_config import RunConfig
from lm.distributed.strategy import ParallelStrategy
from lm.run_folder import find_checkpoint, load_state
from lm.training.events import (
    DecayStarted,
    Evaluation,
    Event,
    Replanned,
    Sample,
    Step,
    StoppedEarly,
    TrainingWarning,
)
from lm.training.trainer import SpeedMeter
from tests.system.conftest import SMALL


def test_measuring_the_speed_is_shown_on_a_terminal_alone(capsys, monkeypatch):
    monkeypatch.setattr(SpeedMeter, "measure_flop_rate", lambda *_, seconds: seconds)
    for is_terminal, shown in ((False, ""), (True, "measuring the speed of this machine …")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda value=is_terminal: value)
        assert ShownSpeedMeter().measure_flop_rate(RunConfig(), seconds=2.0) == 2.0
        line, *rest = capsys.readouterr().err.split("\r")
        assert (line, "".join(rest)) == (shown, " " * len(shown))


def test_under_a_budget_the_number_of_steps_is_that_of_the_last_forecast(capsys):
    forecasts = iter([40, 35, 38])
    display = TrainingDisplay(
        steps=3, first_step=0, matmul_flops_per_second=1e11, seconds_left=lambda: 5.0, forecast=lambda: next(forecasts)
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


def step(number: int, loss: float, **changes: float) -> Step:
    usual = {"learning_rate": 1e-3, "tokens": 1000, "flops": 1e9, "seconds": 0.5, "gradient_norm": 1.0}
    return Step(number, loss, **{**usual, **changes})


def test_lines_have_means_since_the_line_before_and_of_all_steps(capsys, monkeypatch):
    """From step 20 on, of 60: every second step and the last has a line; a step takes two seconds by the clock."""
    monkeypatch.setattr("time.perf_counter", itertools.count(100, 2).__next__)
    display = TrainingDisplay(steps=61, first_step=20, matmul_flops_per_second=4e9)
    for number, loss in ((21, 6.0), (22, 4.0), (23, 3.0), (24, 2.0), (61, 1.0)):
        display.show(step(number, loss, tokens=1000 if number < 24 else 3000))
    assert capsys.readouterr().err.splitlines() == [
        "step     22/61  nll 5.0000  lr 1.0e-03  2k tok/s 50% MFU  1:18 left",
        "step     24/61  nll 2.5000  lr 1.0e-03  3k tok/s 50% MFU  1:14 left",
        "step     61/61  nll 1.0000  lr 1.0e-03  3.6k tok/s 50% MFU  0.0 s left",
    ]


def test_the_smoothed_loss_is_a_mean_of_ten_steps_and_then_an_average_that_decays():
    display = TrainingDisplay(steps=100, first_step=0, matmul_flops_per_second=1e9, seconds_left=lambda: 1.0)
    losses = [8.0, 6.0, 7.0, 5.0, 4.0, 6.0, 3.0, 4.0, 2.0, 5.0, 1.0, 9.0]
    for number, loss in enumerate(losses, 1):
        display.show(step(number, loss))
    expected = [sum(losses[:count]) / count for count in range(1, 11)]
    for loss in losses[10:]:
        expected.append(0.9 * expected[-1] + 0.1 * loss)
    assert display.smoothed == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "stride"), [(19, 1), (20, 2), (39, 2), (40, 3)])
def test_the_curve_of_the_whole_run_has_at_most_ten_characters(terminal, steps, stride):
    screen = terminal(90)
    with TrainingDisplay(steps=60, first_step=0, matmul_flops_per_second=1e9, seconds_left=lambda: 1.0) as display:
        for number in range(1, steps + 1):
            display.show(step(number, 5.0 / number))
        display.progress.refresh()
    curve = sparkline(display.smoothed[::stride], 10)
    assert f"nll {display.smoothed[-1]:.3f} {curve} 2k" in "".join(screen.lines)


def test_events_that_are_no_steps_have_lines(capsys):
    display = TrainingDisplay(steps=3000, first_step=0, matmul_flops_per_second=1e9)
    scores = {"tokens": 9, "seconds": 1.0}
    for event in (
        Evaluation(1000, loss=1.5, bits_per_byte=0.7, is_best=True, **scores),
        Evaluation(2, loss=1.5, bits_per_byte=0.7, is_best=False, accuracy=0.875, **scores),
        Evaluation(3, loss=1.5, bits_per_byte=0.7, is_best=False, bleu=21.5, **scores),
        Sample(4, "the owl", " die Eule ", is_translation=True),
        TrainingWarning(5, "a\x1bb"),
        DecayStarted(6, 2000),
        StoppedEarly(7, patience_ran_out=False, criterion="loss"),
    ):
        display.show(event)
    assert capsys.readouterr().err.splitlines() == [
        "step  1,000  validation loss 1.5000  perplexity 4.48  0.700 bits/byte  best",
        "step      2  validation loss 1.5000  perplexity 4.48  accuracy 87.5%",
        "step      3  validation loss 1.5000  perplexity 4.48  BLEU 21.50",
        "step      4  the owl → die Eule",
        "step      5  warning: a␛b",
        "step      6  the learning rate decays from here to the end, about step 2,000",
    ]
    assert display.steps == 2000


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
    display = TrainingDisplay(steps=1000, first_step=0, matmul_flops_per_second=1e11, seconds_left=lambda: 171.0)
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


def test_stdout_has_only_what_is_asked_for(place, tmp_path, capsys):
    folder = tmp_path / "my run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", "--json", *SMALL]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert (summary["run"], summary["steps"], summary["finished"]) == (str(folder), 5, True)
    assert summary["best_step"] == 5
    assert "\x1b" not in output.err
    assert "validation loss" in output.err
    assert f"next    lm generate '{folder}' \"...\"\n" in output.err
    assert run(["train", "--resume", str(folder), "--steps", "6"]) == 0
    assert capsys.readouterr().out == ""


def test_a_best_loss_of_zero_is_reported_like_any_other(place, tmp_path, capsys, monkeypatch):
    """As of a classifier that is certain."""
    losses = iter([(0.0, 100), (2.0, 100)])
    monkeypatch.setattr("lm.training.evaluation.compute_validation_loss", lambda run: next(losses))
    settings = ["--steps", "4", "--evaluate-every", "2", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *settings]) == 0
    assert "at step 2; 2 later steps changed the loss by +0.0200" in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("are_learned", [False, True])
def test_labels_are_compared_with_the_most_frequent_one(tmp_path, capsys, are_learned):
    labels = ["ab"[number * 7919 % 31 % 2] for number in range(200)]
    rows = [{"text": f"{number}{4 * label * are_learned}", "label": label} for number, label in enumerate(labels)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--supervised", "--learning-rate", "0.01", "--kind", "byte", *SMALL]
    settings += ["--steps", "200" if are_learned else "5", "--evaluate-every", "100"]
    assert run(["train", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "run"), *settings]) == 0
    notes = capsys.readouterr().err
    assert re.search(r"^best .* accuracy [\d.]+%, at step", notes, re.M)
    assert re.search(r"^ +always '[ab]' is right for [\d.]+% of the \d+ held-out examples$", notes, re.M)


def test_an_observer_that_fails_is_left_out_with_a_warning(place, tmp_path, capsys, monkeypatch):
    """As TensorBoard on a full disk, or a display of which something is wrong."""
    seen = []

    @contextmanager
    def recorder(run: Path, *, first_step: int) -> Iterator[Callable[[Event], None]]:
        def record(event: Event) -> None:
            seen.append(event)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        yield record
        raise ValueError("closed")

    monkeypatch.setattr("cli.training.running.open_recorder", recorder)
    monkeypatch.setattr("cli.training.running.has_recordings", lambda run: True)
    monkeypatch.setattr("cli.training.display.format_duration", lambda seconds: 1 / 0)
    folder = tmp_path / "run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", *SMALL]) == 0
    said = capsys.readouterr().err
    assert load_state(find_checkpoint(folder, which="last")).finished
    assert said.count("TensorBoard failed ([Errno 28] No space left on device); training continues without it") == 1
    assert said.count("the display failed (division by zero); training continues without it") == 1
    assert len(seen) == 1


def test_a_lack_of_memory_names_the_options_that_help(place, tmp_path, capsys, monkeypatch):
    def fails(self, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(ParallelStrategy, "__call__", fails)
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "5", *SMALL]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lm: ")]
    assert "4 x 16 tokens in one pass" in line
    assert line.endswith("(--micro-batch-size, --checkpoint-activations)")
