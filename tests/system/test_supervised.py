"""Fine-tuning on examples as whole commands: learned, resumed, prepared ahead, refused."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from lm.run_folder import find_checkpoint, load_config
from tests.system.conftest import assert_resumes_exactly
from tests.tolerances import approx

WORDS = ["red", "blue", "green", "black", "white", "grey", "brown", "pink"]
LABELS = ["--label-column", "label"]
SHAPE = ["--d-model", "32", "--n-layers", "2", "--n-heads", "2", "--context", "40", "--tokenizer", "byte"]
LENGTH = ["--steps", "20", "--batch-size", "32", "--learning-rate", "3e-3", "--set", "training.warmup_steps=20"]


def example(draw: random.Random) -> dict[str, str]:
    """Four colours, of which the last is the answer."""
    colours = draw.choices(WORDS, k=4)
    return {"text": " ".join(colours), "label": colours[-1]}


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Iterator[Path]:
    """A folder with a labelled task and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("task")
    draw = random.Random(0)
    lines = "".join(json.dumps(example(draw)) + "\n" for _ in range(1000))
    (folder / "task.jsonl").write_text(lines)
    command = ["train", str(folder / "task.jsonl"), *LABELS, "-o", str(folder / "run"), *SHAPE, *LENGTH]
    options = ["--evaluate-every", "10", "--set", "training.keep_checkpoints=0", "--sample", "red blue pink grey"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        assert run([*command, *options]) == 0
        yield folder


def metrics(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def answer(folder: Path, prompt: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert run(["generate", str(folder), prompt, "--temperature", "0", "--json"]) == 0
    answered: dict[str, object] = json.loads(capsys.readouterr().out)
    return answered


@pytest.mark.medium
def test_the_answers_are_learned(task, tmp_path, capsys):
    last = task / "run" / "checkpoints" / "step-20"
    assert run(["train", "--resume", str(last), "-o", str(tmp_path / "run"), "--steps", "150"]) == 0
    draw = random.Random(1)
    right = 0
    for _ in range(20):
        asked = example(draw)
        answered = answer(tmp_path / "run", asked["text"], capsys)
        right += (answered["text"], answered["finish_reason"]) == (f"\n{asked['label']}", "end_of_text")
    assert right >= 19


def test_the_logs_tell_of_completions_alone(task):
    logged = metrics(task / "run")
    last = [line for line in logged if "validation_loss" in line][-1]
    tokens = last["validation_tokens"]
    size = last["validation_loss"] * tokens / math.log(2) / last["validation_bits_per_byte"]
    ends = tokens - size  # of byte tokens, these alone are no bytes: one an example
    assert ends == pytest.approx(round(ends))
    assert 60 < ends < 140
    assert 4 * ends < size < 6 * ends  # a line feed, and three to five letters
    assert sum("sample" in line for line in logged) == 2


def test_the_labels_to_choose_among_are_in_the_run(task):
    assert {*load_config(find_checkpoint(task / "run")).label_completions} == {f"\n{word}" for word in WORDS}


@pytest.mark.medium
def test_resuming_equals_never_having_stopped(task, tmp_path):
    assert_resumes_exactly(task / "run", tmp_path / "part", step=10)


@pytest.fixture(scope="module")
def held_out(task) -> Path:
    """Examples that the run `measured` was evaluated on: one is longer than the context, and of one the completion."""
    draw = random.Random(3)
    lines = [example(draw) for _ in range(30)] + [{"text": "ü" * 50, "label": "é?"}, {"text": "", "label": "ü" * 50}]
    (task / "held-out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["train", str(task / "task.jsonl"), *LABELS, "--validation", str(task / "held-out.jsonl")]
    assert run([*command, *SHAPE, "--steps", "3", "--batch-size", "8", "-o", str(task / "measured")]) == 0
    return task / "held-out.jsonl"


def test_perplexity_of_examples_is_what_training_logs(task, held_out, capsys):
    logged = next(line for line in reversed(metrics(task / "measured")) if "validation_loss" in line)
    for arguments in ([], ["--batch-size", "3"]):
        capsys.readouterr()
        assert run(["perplexity", str(task / "measured"), str(held_out), "--json", *arguments]) == 0
        report = json.loads(capsys.readouterr().out)
        total = report["total"]
        assert total["tokens"] == logged["validation_tokens"]
        assert total["nats"] / total["tokens"] == approx(logged["validation_loss"], terms=64, depth=20)
        assert total["bits_per_byte"] == approx(logged["validation_bits_per_byte"], terms=64, depth=20)
        assert (total["documents"], report["unit"], total["shortened"]) == (31, "completion token", 2)
