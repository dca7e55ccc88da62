"""What a run or a preset is, and what it costs."""

import json

import pytest

from cli.main import run
from tests.cli.small_runs import make_run


@pytest.fixture
def described(succeed):
    """Returns what `lm info … --json` prints."""
    return lambda *arguments: json.loads(succeed("info", *arguments, "--json"))


def test_a_run_is_described_by_its_last_checkpoint(tmp_path, monkeypatch, succeed, described):
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "gpt2")  # which wins over the preset
    found = described("gpt2")
    assert found["checkpoint"] == "gpt2/checkpoints/step-0"
    assert found["progress"]["step"] == 0
    assert found["config"]["model"]["d_model"] == 32
    lines = succeed("info", folder).splitlines()
    assert "shape                     n_layers 2, d_model 32, n_heads 2, context_length 32, vocab_size 300" in lines
    assert run(["info", str(tmp_path / "nowhere")]) == 1


def test_presets_are_listed_and_described_by_what_differs_from_the_defaults(succeed, described):
    listed = described()
    assert listed["gpt2"]["parameters"] == 124_439_808
    heading, *rows = succeed("info").splitlines()
    assert heading.split() == ["preset", "parameters", "description"]
    assert [row.split()[0] for row in rows] == list(listed)
    lines = succeed("info", "switch-base", "--set", "training.ema=0.5").splitlines()
    model, training = (next(line for line in lines if line.startswith(name)) for name in ("model ", "training "))
    assert "positions t5, norm_eps 1e-06, activation relu" in model
    assert training.endswith(", ema 0.5")
    assert "active parameters         223M" in lines  # as of T5 base (Fedus et al. 2021, table 1)


def test_experts_are_described_with_the_tokens_that_each_took(tmp_path, succeed, described):
    folder = make_run(tmp_path / "run", experts=4, expert_every=2)
    (folder / "metrics.jsonl").write_text(
        '{"step": 0, "validation_expert_use": {"decoder.blocks.1": [0.1, 0.2, 0.3, 0.4]}}\n'
    )
    found = described(folder)
    assert found["expert_use"] == {"decoder.blocks.1": [0.1, 0.2, 0.3, 0.4]}
    idle = 3 * found["parameters"]["experts"] // 4
    assert found["active_parameters"] == found["parameters"]["total"] - idle
    assert "decoder.blocks.1 10% 20% 30% 40%" in succeed("info", folder)


def test_the_costs_of_gpt2(described):
    """Of 124 M parameters: embeddings of 50,257 tokens and 1,024 positions, and 12 blocks with biases and norms."""
    found = described("gpt2")
    block = 12 * 768**2 + (3 + 1 + 4 + 1) * 768 + 4 * 768
    total = (50_257 + 1024) * 768 + 12 * block + 2 * 768
    assert sum(found["parameters"].values()) == 2 * found["parameters"]["total"] == 2 * total
    assert found["weights_bytes"] == {"float32": 4 * total, "bfloat16": 2 * total}
    assert found["training_bytes"] == 4 * 4 * total  # weights, gradients, AdamW's two moments
    assert found["cache_bytes_per_token"] == 4 * 2 * 12 * 768
    assert "cross-attention" not in found["parameters"]
