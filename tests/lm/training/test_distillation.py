"""Distillation: a run that learns the predictions of others too; they stay as they are."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import lm
from cli.main import run
from lm.checkpoint import load_model
from lm.config.run_config import HardwareConfig
from lm.errors import UsageError
from lm.hardware import select_hardware
from lm.run_folder import load_config
from lm.training.loop import train
from lm.training.run import Run
from tests.lm.training.conftest import metrics_lines, new_run, stop_after, sums
from tests.lm.training.runs import resume_run

CPU = select_hardware(HardwareConfig(threads=1))


@pytest.fixture(scope="module")
def teachers(tmp_path_factory, shards, byte_tokenizer) -> tuple[str, str]:
    """Two runs that know nothing of the text."""
    folder = tmp_path_factory.mktemp("teachers")
    for seed in (1, 2):
        list(train(new_run(folder / str(seed), shards, byte_tokenizer, steps=1, learning_rate=0.0, seed=seed,
                           model={"init_std": 0.3})))  # fmt: skip
    return str(folder / "1"), str(folder / "2")


def divergence(run: Run, teachers: tuple[str, str]) -> float:
    """The mean Kullback-Leibler divergence of a run from the mean of its teachers, on held-out text."""
    tokens = torch.from_numpy(next(run.data.validation()).inputs)
    with torch.no_grad():
        mean = sum(load_model(Path(name), CPU).model(tokens).softmax(-1) for name in teachers) / 2
        ours = load_model(run.folder, CPU, which="last").model(tokens).log_softmax(-1)
    return float((mean * (mean.log() - ours)).sum(-1).mean())


def test_a_student_learns_what_its_teachers_predict_instead_of_the_text(make_run, teachers):
    before, *after = (
        make_run(
            name, steps=20, learning_rate=2e-2, evaluate_every=0, model={"dropout": 0.0}, teacher=teachers,
            distillation_weight=weight,
        )
        for name, weight in (("text", 0.0), ("both", 0.5), ("teachers", 1.0))
    )  # fmt: skip
    far, *closer = (list(train(each)) and divergence(each, teachers) for each in (before, *after))
    assert closer[1] < closer[0] < far
    assert closer[1] < 0.3 * far


def test_a_run_resumes_with_a_teacher_that_was_moved(make_run, teachers, tmp_path):
    run, moved = make_run(teacher=teachers[:1]), tmp_path / "moved"
    list(train(run, stop=stop_after(2)))
    shutil.copytree(teachers[0], moved)
    shutil.copytree(run.folder, again := tmp_path / "again")
    with pytest.raises(UsageError, match="name as many"):
        lm.train(resume=run.folder / "checkpoints" / "step-2", out=tmp_path / "copy", teacher=[moved, moved])
    assert not (tmp_path / "copy").exists()
    list(train(resume_run(run.folder)))
    lm.train(resume=again, teacher=moved)
    assert str(moved) in load_config(again).training.teacher[0]
    assert sums(run)["model.safetensors"] == sums(Run.open(again))["model.safetensors"]


def test_an_interrupted_run_resumes_exactly(make_run, teachers):
    settings = {"r_drop": 0.5, "micro_batch_size": 2, "optimizer": "muon"}
    whole, parts = (make_run(name, teacher=teachers, **settings) for name in ("whole", "parts"))
    list(train(whole))
    list(train(parts, stop=stop_after(7)))
    list(train(parts := resume_run(parts.folder)))
    assert sums(whole)["model.safetensors"] == sums(parts)["model.safetensors"]
    assert metrics_lines(whole) == metrics_lines(parts)


def test_the_command_takes_tokenizer_and_predictions_of_its_teachers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The owl saw the fox by the mill. " * 300)
    small = ["--steps", "2", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "8", "--threads", "1"]
    for name, size in (("one", "270"), ("two", "280")):
        assert run(["train", "text.txt", "-o", name, "--vocab-size", size, *small]) == 0
    student = ["train", "text.txt", *small, "--teacher", "one"]
    assert run([*student, "-o", "student"]) == 0
    config = load_config(Path("student"))
    assert lm.load("student").tokenizer.sha256 == lm.load("one").tokenizer.sha256
    (teacher,) = config.training.teacher
    assert teacher == str(Path("one/checkpoints/step-2").resolve())
    assert re.search(rf"teacher +{teacher} +flag", capsys.readouterr().err)
    for options, problem in (
        (["--teacher", "two"], "two/checkpoints/step-2: has another tokenizer, or is another kind of model"),
        (["--vocab-size", "300"], "tokenizer.vocab_size cannot be given beside an existing tokenizer"),
        (["--teacher", "none"], "none: neither"),
        (["--objective", "masked"], "has another tokenizer, or is another kind of model"),
    ):
        assert run([*student, *options, "-o", "other"]) in (1, 2)
        assert problem in capsys.readouterr().err
        assert not Path("other").exists()


def test_settings_of_distillation_need_a_teacher(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("text")
    assert run(["train", str(tmp_path / "text.txt"), "--set", "training.distillation_weight=0.7"]) == 2
    assert "training.distillation_weight has no effect without training.teacher" in capsys.readouterr().err
