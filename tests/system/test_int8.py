"""Weights of 8 bits, and the compiled step, from the command line."""

from __future__ import annotations

import json

import pytest

from cli.main import run
from lm.native import choice
from tests.cli.small_runs import TEXT, make_run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("int8") / "run")


def told(capsys, *arguments: object) -> str:
    assert run([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_perplexity_is_nearly_that_of_float32(model, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    of_32, of_8 = (
        json.loads(told(capsys, "perplexity", model, tmp_path / "text.txt", "--dtype", dtype, "--json"))["total"]
        for dtype in ("float32", "int8")
    )
    assert of_8["tokens"] == of_32["tokens"]
    assert of_8["nats"] != of_32["nats"]
    assert of_8["nats"] == pytest.approx(of_32["nats"], rel=0.01)


def test_it_writes_and_is_looked_at(model, capsys):
    assert told(capsys, "generate", model, "The owl", "--dtype", "int8", "--max-tokens", "9", "--seed", "1")
    assert told(capsys, "attention", model, "The owl", "--dtype", "int8")


def test_it_is_not_trained(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    assert run(["train", str(tmp_path / "text.txt"), "--dtype", "int8", "-o", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "--dtype int8" in error
    assert error.count("\n") == 1


def test_without_a_compiler_there_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(choice, "_version", lambda: None)
    assert run(["compile"]) == 1
    error = capsys.readouterr().err
    assert "pip install 'lm-toolkit[native]'" in error
    assert error.count("\n") == 1
