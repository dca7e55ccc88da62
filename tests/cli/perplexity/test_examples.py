"""A supervised run is measured as it was trained: completions given their prompts, and nothing else."""

from __future__ import annotations

import json
import math

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_model
from lm.config.hardware import HardwareConfig
from lm.hardware import select_inference_hardware
from tests.cli.small_runs import make_run
from tests.tolerances import approx

EXAMPLES = [("The owl saw", " the fox"), ("狐", " by the mill"), ("", "ran")]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory):
    """A run that learns from examples."""
    return make_run(tmp_path_factory.mktemp("runs") / "supervised", supervised=True)


@pytest.fixture
def examples(tmp_path):
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in EXAMPLES]
    (tmp_path / "examples.jsonl").write_text("".join(lines))
    return tmp_path / "examples.jsonl"


def test_completions_and_their_ends_are_scored_given_their_prompts(report, supervised, examples):
    loaded = load_model(supervised, select_inference_hardware(HardwareConfig()))
    tokenizer, expected, tokens = loaded.tokenizer, 0.0, 0
    for prompt, completion in EXAMPLES:
        learned = [*tokenizer.encode(completion), tokenizer.end_of_text]
        ids = torch.tensor([[tokenizer.start_of_text, *tokenizer.encode(prompt), *learned]])
        with torch.no_grad():
            logprobs = loaded.model(ids[:, :-1]).log_softmax(-1)
        expected -= sum(logprobs[0, -len(learned) + place, token].item() for place, token in enumerate(learned))
        tokens += len(learned)
    found = report(supervised, examples)
    assert found["total"]["nats"] == approx(expected, model=loaded.model)
    assert found["total"]["perplexity"] == approx(math.exp(expected / tokens), model=loaded.model)
    assert (found["total"]["tokens"], found["total"]["documents"]) == (tokens, len(EXAMPLES))
    assert (found["unit"], found["shortened"]) == ("completion token", 0)


def test_the_report_tells_examples_from_text(report, supervised, tmp_path, capsys):
    labels = tmp_path / "labels.jsonl"
    labels.write_text((json.dumps({"text": "the owl.", "label": "fox"}) + "\n") * 3)
    assert run(["perplexity", str(supervised), str(labels)]) == 0
    assert "of the completions" in " ".join(capsys.readouterr().out.split())
    total = report(supervised, labels, "--field", "text")["total"]
    assert (total["documents"], total["bytes"]) == (3, 24)


def test_examples_and_text_are_measured_separately(supervised, examples, capsys):
    (examples.parent / "plain.txt").write_text("the owl")
    assert run(["perplexity", str(supervised), str(examples), str(examples.parent / "plain.txt")]) == 2
    assert "measure them separately" in capsys.readouterr().err


def test_a_line_that_is_no_example_is_named(supervised, tmp_path, capsys):
    (tmp_path / "half.jsonl").write_text('{"prompt": "red"}\n')
    assert run(["perplexity", str(supervised), str(tmp_path / "half.jsonl")]) == 1
    assert "half.jsonl: line 1: no field 'completion' beside 'prompt'" in capsys.readouterr().err
