"""`lm train --budget` and `--depth`, as a person types them."""

import io
import json
import random
import re
import sys
from collections.abc import Mapping

import pytest

from cli import training
from cli.main import run
from lm.config.run_config import RunConfig
from lm.training.trainer import train_events
from tests.cli.toy_translation import DICTIONARY
from tests.forked import Forked
from tests.lm.training.steady import steady as options
from tests.system.conftest import SMALL


@pytest.fixture
def steady(monkeypatch):
    """Have commands train on a machine of which everything takes the same time, or as long as a test says."""

    def machine(**speeds):
        monkeypatch.setattr(
            training, "train_events", lambda spec, **given: train_events(spec, **given | options(**speeds))
        )

    machine()
    return machine


@pytest.fixture
def plan(steady, capsys):
    """Plan a run with `--dry-run`; return its configuration, and what chose each setting."""

    def plan(*arguments: object) -> tuple[RunConfig, Mapping[str, str]]:
        capsys.readouterr()
        assert run(["train", *map(str, arguments), "--dry-run", "--json"]) == 0
        config = RunConfig.from_dict(json.loads(capsys.readouterr().out), where="")
        return config, config.plan.reasons

    return plan


def config(folder):
    return json.loads((folder / "config.json").read_text())


def test_a_time_is_all_that_has_to_be_said(place, steady, tmp_path, capsys):
    assert run(["train", str(place / "text.txt"), "--budget", "2s", "-o", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    table = {line.split("  ")[0]: line for line in said.splitlines()}
    assert table["weight decay"].endswith("epochs in the budget")
    made = config(tmp_path / "run")
    assert made["preset"].startswith("depth-")
    assert made["training"]["budget"] == "2s"
    assert made["plan"]["budget_seconds"] is None
    assert made["model"]["dropout"] > 0  # the text is short, and seen very often
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) <= made["plan"]["steps"]
    assert any("validation_loss" in line for line in lines)


@pytest.mark.slow
def test_nothing_has_to_be_said(place, steady, tmp_path):
    """The time is chosen too; the clock of this run moves on by a second each time it is asked."""
    steady(flop_rate=1e11, tick=1.0)
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run")]) == 0
    made = config(tmp_path / "run")
    assert made["training"]["budget"] == "1m"
    assert made["plan"]["decay_step"] is not None
    assert made["plan"]["reasons"]["training.budget"] == "size of the corpus"


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--depth 3", "model.n_layers", 3),
        ("--vocab-size 280", "model.vocab_size", 280),
        ("--batch-size 4", "training.batch_tokens", None),
        ("--dropout 0.3", "model.dropout", 0.3),
    ],
)
def test_what_is_given_replaces_that_choice_alone(place, plan, flags, name, value):
    """The others are still chosen: the length, evaluations, and regularisation by the epochs."""
    made, by = plan(place / "text.txt", "--budget", "1s", *flags.split())
    section, field = name.split(".")
    assert getattr(getattr(made, section), field) == value
    assert by["training.weight_decay"] == "epochs in the budget"
    if "--dropout" not in flags:
        assert by["model.dropout"] == "epochs in the budget"
    if "--batch-size" not in flags:
        assert by["training.batch_tokens"] == "budget"
    if "--vocab-size" not in flags and "--preset" not in flags:
        assert by["tokenizer.vocab_size"] == "budget"


@pytest.mark.medium
def test_a_dry_run_does_not_build_the_model(place, tmp_path):
    """Weights, gradients and optimizer state of the whole model would be 4.5 GB."""
    with (tmp_path / "said").open("w") as said, Forked(plan_a_large_run, place / "text.txt", stderr=said) as process:
        assert process.wait() == 0, (tmp_path / "said").read_text()
    (memory, _), (_, peak) = re.findall(r"^memory +([\d.]+) GB|^peak (\d+)", (tmp_path / "said").read_text(), re.M)
    assert float(memory) > 4
    assert int(peak) < 2e9


def plan_a_large_run(text: str) -> None:
    import resource

    flags = ["--preset", "gpt2", "--n-layers", "40", "--context", "64", "--batch-size", "1", "--vocab-size", "300"]
    code = run(["train", text, *flags, "--dry-run", "--threads", "1", "--dtype", "float32", "--steps", "7"])
    unit = 1 if sys.platform == "darwin" else 1024
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, file=sys.stderr)
    sys.exit(code)


def test_the_text_for_a_budget_may_come_from_a_pipe(place, steady, tmp_path, monkeypatch):
    """It is looked at for the size of the model, and read again."""
    text = (place / "text.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["train", "-", "--budget", "1s", "-o", str(tmp_path / "run")]) == 0


@pytest.fixture
def pairs(tmp_path, steady):
    """The flags that name pairs of sentences."""
    chance = random.Random(6)
    sources = [chance.choices(list(DICTIONARY), k=chance.randint(2, 6)) for _ in range(300)]
    (tmp_path / "text.en").write_text("".join(" ".join(line) + "\n" for line in sources))
    (tmp_path / "text.de").write_text("".join(" ".join(map(DICTIONARY.get, line)) + "\n" for line in sources))
    return ["--source", str(tmp_path / "text.en"), "--target", str(tmp_path / "text.de")]


def test_for_pairs_too_a_time_is_all_that_has_to_be_said(pairs, steady, tmp_path):
    steady(step=1e-4)
    assert run(["train", *pairs, "--budget", "2s", "-o", str(tmp_path / "run")]) == 0
    made = config(tmp_path / "run")
    assert made["preset"].startswith("translation-depth-")
    assert made["model"]["n_layers"] == made["model"]["n_encoder_layers"]
    assert (made["parallel"]["bpe_dropout"], made["training"]["budget"]) == (0.1, "2s")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == made["plan"]["steps"]


def test_a_finished_run_is_given_more_time_by_flag(place, steady, tmp_path):
    flags = [*SMALL, "--steps", "5", "--set", "training.schedule=linear", "-o", str(tmp_path / "run")]
    assert run(["train", str(place / "text.txt"), *flags]) == 0
    assert run(["train", "--resume", str(tmp_path / "run"), "--budget", "3s"]) == 0
    made = config(tmp_path / "run")
    assert (made["training"]["budget"], made["training"]["schedule"], made["plan"]["budget_seconds"]) == (
        "3s",
        "wsd",
        None,
    )
    assert made["plan"]["steps"] > 10
    assert (tmp_path / "run" / "last").read_text() == f"step-{made['plan']['steps']}\n"


def test_a_run_is_not_resumed_for_a_budget_that_start_up_takes(place, steady, tmp_path):
    assert run(["train", str(place / "text.txt"), *SMALL, "--steps", "2", "-o", str(tmp_path / "run")]) == 0
    before = config(tmp_path / "run")
    steady(startup=8.0, tick=0.0)
    assert run(["train", "--resume", str(tmp_path / "run"), "--budget", "10s"]) == 2
    assert config(tmp_path / "run") == before


def test_a_time_that_is_chosen_has_room_for_a_slow_start_up(place, plan, steady):
    steady(startup=70.0, tick=0.0, flop_rate=1e11)
    made, _ = plan(place / "text.txt")
    assert made.training.budget == "5m"
