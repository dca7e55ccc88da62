"""Training on a terminal and in a pipe: the plan, a line for each event, and a summary if it is asked for."""

import dataclasses
import re
from types import SimpleNamespace

from rich.cells import cell_len

from cli.runs import print_plan
from cli.training import TrainingDisplay
from lm.config.presets import build_run_config
from lm.config.run_config import RunPlan
from lm.config.run_spec import DataFiles, RunSpec
from lm.training.plan import plan_spec
from lm.training.run_log import DecayStarted, Evaluation, Sample, Step, StoppedEarly


def test_all_rows_of_a_plan_of_pairs_under_a_budget():
    settings = {"training": {"budget": "1m", "r_drop": 0.5, "evaluate_every": 0}, "parallel": {"bpe_dropout": 0.1},
                "model": {"n_encoder_layers": 2, "n_layers": 1}}  # fmt: skip
    reasons = {"training.budget": "flag", "training.r_drop": "repetition", "parallel.bpe_dropout": "pairs",
               "training.evaluate_every": "file", "training.learning_rate": "width", "preset": "budget"}  # fmt: skip
    config = build_run_config("tiny", settings)
    chosen = {**plan_spec(RunSpec(data=DataFiles(text=("a text.txt",)), settings=settings)).reasons, **reasons}
    plan = RunPlan(
        "cpu", "float32", 2, 40, "tokens", "key", ("a text.txt",), epochs=8.0, budget_seconds=60.0,
        reasons=chosen, changes=("step 7: extended from 20 to 40 steps",),
    )  # fmt: skip
    lines: list[str] = []
    print_plan(dataclasses.replace(config, plan=plan), lines.append)
    assert [re.split("  +", line) for line in lines] == [
        ["plan", "chosen by"],
        ["time", "1m", "flag"],
        ["model", "2 + 1 layer, 128 wide, 788k parameters", "budget"],
        ["vocabulary", "1,024 tokens (bpe)", "default"],
        ["context", "128 tokens", "default"],
        ["batch", "16 sequences", "default"],
        ["length", "about 40 steps, 8.0 epochs", "flag"],
        ["learning rate", "0.02 (wsd), muon", "width"],
        ["weight decay", "0.1", "default"],
        ["r drop", "0.5", "repetition"],
        ["bpe dropout", "0.1", "pairs"],
        ["evaluation", "at the end", "file"],
        ["hardware", "float32 on cpu, 2 threads", "default"],
        ["seed", "0", "default"],
        ["corpus", "a text.txt"],
        ["step 7: extended from 20 to 40 steps"],
    ]


def display_of(steps: int, *, first_step: int = 0) -> TrainingDisplay:
    plan = SimpleNamespace(steps=steps, budget_seconds=None)
    run = SimpleNamespace(plan=plan, state=SimpleNamespace(step=first_step, training_loss=5.0, budget_seconds_used=0.0))
    return TrainingDisplay(run)  # type: ignore[arg-type]


def test_training_fits_the_terminal(terminal):
    width = 60
    screen = terminal(width)
    with display_of(20_000, first_step=0) as display:
        for step in range(1, 40):
            display.show(step_of(step, 5.0 / step))
        display.progress.refresh()
        drawn = [line for line in screen.lines if "/20,000" in line]
        assert drawn
        assert max(map(cell_len, drawn)) <= width
        assert "left" in drawn[-1]
        assert "…" not in drawn[-1]
        display.show(Sample(40, "Once", "[/b] cat :smile: \x1b[2J and then on and on " * 5))
        display.show(Evaluation(40, loss=1.5, bits_per_byte=0.7, tokens=9, seconds=1.0, is_best=True, bleu=21.5))
    assert max(map(cell_len, screen.lines)) <= width
    assert screen.getvalue().count("[/b]") == 5
    assert "\x1b[2J" not in screen.getvalue()
    assert "BLEU 21.50" in " ".join(" ".join(screen.lines).split())


def test_a_pipe_gets_about_twenty_lines_and_the_last_step(capsys):
    display = display_of(103)
    for step in range(1, 104):
        display.show(step_of(step, 5.0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{step}/103" for step in (*range(5, 101, 5), 103)]


def step_of(number: int, loss: float) -> Step:
    return Step(number, loss, loss, 1e-3, 1.0, 1000, 1e9, 0.5)


def test_events_that_are_no_steps_have_lines(capsys):
    display = display_of(3000, first_step=0)
    scores = {"tokens": 9, "seconds": 1.0}
    for event in (
        Evaluation(1000, loss=1.5, bits_per_byte=0.7, is_best=True, **scores),
        Evaluation(2, loss=1.5, bits_per_byte=0.7, is_best=False, accuracy=0.875, **scores),
        Evaluation(3, loss=1.5, bits_per_byte=0.7, is_best=False, bleu=21.5, **scores),
        Sample(4, "the owl", " die Eule ", is_translation=True),
        DecayStarted(6, 2000),
        StoppedEarly(7, patience_ran_out=False),
    ):
        display.show(event)
    assert capsys.readouterr().err.splitlines() == [
        "step  1,000  validation loss 1.5000  perplexity 4.48  0.700 bits/byte  best",
        "step      2  validation loss 1.5000  perplexity 4.48  accuracy 87.5%  0.700 bits/byte",
        "step      3  validation loss 1.5000  perplexity 4.48  BLEU 21.50  0.700 bits/byte",
        "step      4  the owl → die Eule",
        "step      6  the learning rate decays from here to the end, about step 2,000",
    ]
