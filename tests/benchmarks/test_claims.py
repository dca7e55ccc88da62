"""The claims of the documentation: which there are, how they are chosen, and that each can be measured."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from lm.config.presets import build_run_config
from lm.model import build_model, count_parameters
from tests.benchmarks.claims import STORIES, all_claims
from tests.benchmarks.comparison import Claim, Result, System, Task
from tests.benchmarks.report import describe_machine, markdown

SHORT = (
    "--depth", "1", "--tokenizer", "char", "--context", "16", "--batch-size", "2", "--steps", "2",
    "--evaluate-every", "1",
)  # fmt: skip
CLAIMS = all_claims(training_dtype="bfloat16", corpus=Path("input.txt"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_workload_takes_the_arguments_that_its_claim_gives(dtype):
    for claim in all_claims(training_dtype=dtype, corpus=None):
        assert claim.systems[0].name.startswith("lm")
        assert len(claim.systems) > 1
        if claim.setup is not None:
            inspect.signature(claim.setup.load()).bind(Path(), **claim.setup.arguments)
        for system in claim.systems:
            inspect.signature(system.task.load()).bind(Path(), claim.threads, **system.task.arguments)


@pytest.fixture
def results():
    systems = [System(name, "float32", Task("")) for name in ("lm", "other", "absent|")]
    claims = [Claim("fast", "some work", systems, 2, amount=10, unit="tokens/s"), Claim("slow", "other", systems, 1)]
    return [
        (
            claim,
            [
                Result(systems[0], [1.0, 2.0, 4.0], [10.0, 10.0, 10.0], flops=1.0, peak_bytes=5_000_000),
                Result(systems[1], [4.0, 4.0, 4.0], peak_bytes=7_000_000),
                Result(systems[2], problem="not run: absent missing"),
            ],
        )
        for claim in claims
    ]


def test_the_table_has_a_row_for_each_system(results):
    described, table = markdown(describe_machine(instructions="AVX2"), results).split("\n\n")
    lines = table.splitlines()
    assert "AVX2" in described
    assert "no GPU" in described
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == 2 + 2 * 3
    assert {len(row) for row in rows} == {9}
    assert rows[2] == [
        "fast", "some work", "2", "**lm**", "float32", "5.00 (2.50–10.00) tokens/s", "", "5.0%", "5 MB",
    ]  # fmt: skip
    assert rows[3][3:7] == ["other", "float32", "2.50 (2.50–2.50) tokens/s", "**2.00** (1.00–4.00)"]
    assert rows[4][5] == "not run: absent missing"
    assert rows[5][5] == "2.00 (1.00–4.00) s"


def test_the_recipe_of_nanogpt_has_the_shape_of_its_preset(tmp_path):
    nanogpt = pytest.importorskip("tests.benchmarks.workloads.nanogpt")
    preset = build_model(build_run_config("nanogpt-cpu").model)
    assert count_parameters(nanogpt.GPT(65)) == count_parameters(preset)
    rates = [nanogpt.learning_rate(step, 2000) for step in (99, 100, 1050, 1999)]
    assert rates == pytest.approx([1e-3 * 100 / 101, 1e-3, 5.5e-4, 1e-4], rel=1e-3)
    (tmp_path / "text").write_text("to be or not to be, that is the question. " * 50)
    train, validation = nanogpt.read(tmp_path / "text")
    model = nanogpt.GPT(int(train.max()) + 1)
    before = nanogpt.validation_loss(model, validation)
    for _ in nanogpt.training_steps(model, train, steps=3):
        pass
    assert nanogpt.validation_loss(model, validation) < before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.name}: {claim.title}")
def test_every_workload_works_with_small_models(claim, tmp_path, monkeypatch):
    """In this process, one after another, whatever the number of threads."""
    from tests.benchmarks.workloads import models

    for name, shape in models.SHAPES.items():
        small = dataclasses.replace(shape, n_layers=1, d_model=64, n_heads=2, n_kv_heads=2, d_ff=128, d_head=32)
        monkeypatch.setitem(models.SHAPES, name, small)
    short = {
        "commands.lm_train": {"corpus": str(STORIES), "flags": SHORT, "loss": 9.0},
        "nanogpt.recipe": {"corpus": str(STORIES), "steps": 6},
        "translation.prepare": {"flags": ("--preset", "translation-tiny", "--steps", "40")},
    }
    if claim.setup is not None:
        claim.setup.load()(tmp_path, **{**claim.setup.arguments, **short.get(claim.setup.name, {})})
    for system in claim.systems:
        if all(need.is_met() or need.kind == "file" for need in system.needs):
            arguments = {**system.task.arguments, **short.get(system.task.name, {})}
            assert system.task.load()(tmp_path, 1, **arguments).run() > 0
