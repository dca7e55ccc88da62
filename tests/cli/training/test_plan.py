"""The plan of a run, row by row, and what is said about its budget at each limit."""

from dataclasses import replace
from typing import Any

import pytest

from cli.console.numbers import format_quantity
from cli.training.plan import equivalent_command, plan_rows, show_dry_run, show_plan
from lm.config.run_spec import DataFiles, RunSpec
from lm.model.cost import training_flops
from lm.training.planning.memory import estimate_memory
from lm.training.planning.resolve import BudgetForecast
from lm.training.trainer import Planned
from tests.cli.training.test_report import planned


def test_all_rows_of_a_plan_of_pairs_under_a_budget():
    settings = {"training": {"budget": "1m", "r_drop": 0.5, "evaluate_every": 0}, "parallel": {"bpe_dropout": 0.1},
                "model": {"n_encoder_layers": 2, "n_layers": 1}}  # fmt: skip
    reasons = {"training.budget": "flag", "training.r_drop": "repetition", "parallel.bpe_dropout": "pairs",
               "training.evaluate_every": "file", "training.learning_rate": "width", "preset": "budget"}  # fmt: skip
    event = planned(reasons, settings)
    flops = 40 * training_flops(event.config.model, rows=2, length=1, forward_passes=2)
    assert list(plan_rows(event)) == [
        ("time", "1m, 3.0 s of it start-up", "flag"),
        ("model", "2 + 1 layer, 128 wide, 788k parameters", "time and corpus"),
        ("vocabulary", "1,024 characters", "preset"),
        ("context", "128 tokens", "preset"),
        ("batch", "2 numbers", "preset"),
        ("length", "about 40 steps, 8.0 epochs", "time"),
        ("learning rate", "0.02 (wsd), muon", "width"),
        ("dropout", "0", "default"),
        ("weight decay", "0.1", "default"),
        ("R-Drop", "0.5, two passes of each batch", "repetition"),
        ("BPE dropout", "0.1", "pairs"),
        ("evaluation", "at the end", "file"),
        ("hardware", "float32 on cpu, 2 threads", "default"),
        ("FLOPs", format_quantity(flops, "FLOPs"), ""),
    ]


def forecast(**changes: Any) -> BudgetForecast:
    """One that nothing is to be said about, of 12 seconds."""
    usual = {"steps": 100, "step_seconds": 0.1, "epochs": 2.0, "is_regularised": False, "novelty": 1.0,
             "ngram_bits": (), "tokens": 2e6, "r_drop": 0.0, "evaluation_seconds": 1.0,
             "evaluation_limit": 1.0}  # fmt: skip
    return BudgetForecast(**{**usual, **changes})


def warnings(capsys: pytest.CaptureFixture[str], event: Planned) -> list[str]:
    """What is said after the table."""
    show_plan(event)
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith(("note ", "warning "))]


def under_budget(budget: str = "12s", *, max_steps: int | None = None, pairs: bool = False, **changes: Any) -> Planned:
    settings = {"training": {"budget": budget}, "model": {"n_encoder_layers": int(pairs)}}
    event = planned({"training.budget": "flag"}, settings, forecast=forecast(**changes))
    event.config.plan = replace(event.config.plan, max_steps=max_steps)
    return event


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({}, None),
        ({"is_regularised": True, "novelty": 0.8}, None),
        ({"is_regularised": True, "novelty": 0.5, "epochs": 0.9}, None),
        ({"novelty": 0.5}, None),
        ({"is_regularised": True, "novelty": 0.5, "epochs": 1.0},
         "note    the text is repetitive, so regularisation is that of 0.5 epochs, not 1.0"),
        ({"max_steps": 41}, None),
        ({"max_steps": 40}, "note    more than 2 epochs would only memorise the text, so the run ends before 12s; more "
                            "text would help"),
        ({"budget": "11s"}, "warning start-up took 3.0 s of 11s, so 8.0 s are left for training: give 20s or more "
                            "(--budget)"),
        ({"budget": "2s"}, "warning start-up took 3.0 s of 2s, so 0.0 s are left for training: give 20s or more "
                           "(--budget)"),
        ({"tokens": 1.0}, None),
        ({"pairs": True, "tokens": 200_000}, None),
        ({"pairs": True, "tokens": 100_000}, "warning 100k tokens of targets are too few to learn to translate: 23.0 s "
                                             "or more would be enough to begin with (--budget)"),
        ({"steps": 49.4}, "warning 12s is enough for about 49 steps only: more time would teach more, or a smaller "
                          "model or batch (--budget, --preset, --batch-size)"),
        ({"evaluation_seconds": 1.1}, "warning one evaluation and checkpoint take 1.1 s, more than the 1.0 s of 12s "
                                      "that are for them: hold out less (--validation), or give more time (--budget)"),
    ],
)  # fmt: skip
def test_under_a_budget_it_is_said_what_the_time_is_too_short_or_too_long_for(event, line, capsys):
    assert warnings(capsys, under_budget(**event)) == ([] if line is None else [line])


def test_pairs_after_a_slow_start_need_time_for_both(capsys):
    too_few, *_ = warnings(capsys, under_budget("4s", pairs=True, tokens=190_000))
    assert ": 20.0 s or more would be enough to begin with" in too_few


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RunSpec(data=DataFiles(source=("a b.en", "c.en"), target=("a.de",), heads=("a.heads",),
                                validation_source="v.en", validation_target="v.de", validation_heads="v.heads"),
                 tokenizer="t.json", out="runs/a"),
         "--source 'a b.en' --source c.en --target a.de --heads a.heads --validation-source v.en --validation-target "
         "v.de --validation-heads v.heads --tokenizer t.json -o runs/a --preset tiny"),
        (RunSpec(data=DataFiles(pairs=("a.tsv",)), from_run="runs/base"), "--pairs a.tsv --from runs/base"),
        (RunSpec(data=DataFiles(text=("a.txt",))), "a.txt --preset tiny"),
    ],
)  # fmt: skip
def test_the_command_of_a_plan_names_its_files_and_runs(spec, words):
    event = planned({"preset": "default"}, {})
    assert equivalent_command(event, spec) == f"lm train {words} --steps 40 --dtype float32 --threads 2"


def test_a_dry_run_under_a_budget_prints_memory_and_command(capsys):
    event = under_budget()
    show_dry_run(event, spec := RunSpec(data=DataFiles(text=("a.txt",))))
    printed = capsys.readouterr()
    assert printed.out == equivalent_command(event, spec) + "\n"
    memory = 3.5e8 + estimate_memory(event.config, processes=1, dtype="float32").total
    assert printed.err == f"memory  about {format_quantity(memory, 'B')}\n"


def test_the_table_is_aligned_below_its_heading(capsys):
    show_plan(planned({}, {}))
    heading, *rows = capsys.readouterr().err.splitlines()
    place = heading.index("chosen by")
    assert heading.startswith("plan  ")
    assert {row[place - 2 : place] for row in rows[:-1]} == {"  "}
    assert all(not row[place].isspace() for row in rows[:-1])
    assert not any(row.endswith(" ") for row in rows)
