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
    """That of 12 seconds."""
    return BudgetForecast(**{"steps": 100, "epochs": 2.0, "ngram_bits": (), "tokens": 2e6, **changes})


def under_budget(budget: str = "12s", *, max_steps: int | None = None, pairs: bool = False, **changes: Any) -> Planned:
    settings = {"training": {"budget": budget}, "model": {"n_encoder_layers": int(pairs)}}
    event = planned({"training.budget": "flag"}, settings, forecast=forecast(**changes))
    event.config.plan = replace(event.config.plan, max_steps=max_steps)
    return event


@pytest.mark.parametrize("event", [{}, {"budget": "2s", "steps": 1.0}, {"max_steps": 40}, {"pairs": True}])
def test_nothing_is_said_after_the_table(event, capsys):
    planned = under_budget(**event)
    show_plan(planned)
    assert len(capsys.readouterr().err.splitlines()) == 1 + len(list(plan_rows(planned)))


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
    assert equivalent_command(event, spec) == f"lm train {words}"


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
