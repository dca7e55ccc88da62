"""What a run or a preset is, as it is told."""

import dataclasses
import json
import re

import pytest

from cli.info import compute_costs, compute_costs_per_process
from cli.main import run
from lm.config.hardware import DistributionConfig
from lm.config.presets import build_run_config
from lm.model.cost import total_parameters
from tests.cli.small_runs import make_run


def test_a_run_is_described_by_its_last_checkpoint(tmp_path, capsys):
    folder = make_run(tmp_path / "novel")
    assert run(["info", str(folder), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["name"] == str(folder)
    assert described["checkpoint"] == str(folder / "checkpoints" / "step-0")
    assert described["progress"]["step"] == 0
    assert described["config"]["model"]["d_model"] == 32
    assert run(["info", str(folder)]) == 0
    assert "2 layers, d_model 32, 2 heads" in capsys.readouterr().out


def test_presets_are_listed_and_described(capsys):
    assert run(["info", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["gpt2"]["parameters"] == 124_439_808
    assert run(["info"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["preset", "parameters", "description"]
    assert [row.split()[0] for row in rows] == list(listed)


def test_a_run_wins_over_a_preset_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "gpt2")
    assert run(["info", "gpt2", "--json"]) == 0
    assert "progress" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("preset", "facts"),
    [
        ("t-dmca", ["shape       5 layers, d_model 512, 8 heads", "            context 11,000, vocabulary 32,000",
                    "block       post-norm layernorm, relu",
                    "attention   compressed, attention block 256, attention stride 3", "positions   sinusoidal"]),
        ("switch-base", ["experts     8 in one block in 2, top-1: 223M active parameters per token",
                         "            1.48 GFLOPs/token", "KV cache    73.7 kB per token and sequence, in float32"]),
    ],
)  # fmt: skip
def test_a_model_is_described_by_what_differs_from_others(capsys, preset, facts):
    """223M of switch-base are read for a token (Fedus et al. 2021, table 1, has T5 base: 223M)."""
    assert run(["info", preset]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in facts] == facts
    assert lines[0] == "part" + lines[0][4:]
    total = next(line.split() for line in lines if line.startswith("total "))
    assert total[1:] == [
        f"{sum(int(line.split()[-2].replace(',', '')) for line in lines[1 : lines.index('') - 1]):,}",
        "100.0%",
    ]


def test_costs_of_processes_are_told(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    for processes, label in ((1, "one process "), (2, "per process ")):
        assert run(["info", str(folder), "--processes", str(processes), "--batch-tokens", "64"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if line.startswith(label)]
        parts = re.findall(r"[\d.]+ [kM]?B (\w+)", line.partition(": ")[2])
        assert parts == ["weights", "gradients", "optimizer", "activations", "loss"]


def test_information_tells_how_many_experts_there_are_and_what_each_took(tmp_path, capsys):
    folder = make_run(tmp_path / "run", experts=4, expert_every=2)
    (folder / "metrics.jsonl").write_text(
        '{"step": 0, "validation_expert_use": {"decoder.blocks.1": [0.1, 0.2, 0.3, 0.4]}}\n'
    )
    assert run(["info", str(folder), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["expert_use"] == {"decoder.blocks.1": [0.1, 0.2, 0.3, 0.4]}
    idle = 3 * described["parameters"]["experts"] // 4
    assert described["active_parameters"] == described["parameters"]["total"] - idle
    assert run(["info", str(folder)]) == 0
    found = capsys.readouterr().out
    assert "decoder.blocks.1: 10% 20% 30% 40%" in found


def test_the_costs_of_gpt2():
    """Of 124 M parameters: embeddings of 50,257 tokens and 1,024 positions, and 12 blocks with biases and norms."""
    config = build_run_config("gpt2")
    found = compute_costs(config)
    block = 12 * 768**2 + (3 + 1 + 4 + 1) * 768 + 4 * 768
    total = (50_257 + 1024) * 768 + 12 * block + 2 * 768
    assert total_parameters(config.model) == found["parameters"]["total"] == total
    assert sum(found["parameters"].values()) == 2 * total
    assert found["weights_bytes"] == {"float32": 4 * total, "bfloat16": 2 * total}
    assert found["training_bytes"] == 4 * 4 * total  # weights, gradients, AdamW's two moments
    assert found["cache_bytes_per_token"] == 4 * 2 * 12 * 768
    assert "cross-attention" not in found["parameters"]


def test_what_each_of_several_processes_holds_of_a_narrow_gpt2():
    """Of 16 bytes a parameter each of eight has its share; what is gathered and what the loss needs comes on top."""
    narrow = {"context_length": 64, "d_model": 96, "n_heads": 2}
    gpt2 = build_run_config("gpt2", {"training": {"batch_tokens": 2 * 8 * 64}, "model": narrow})
    sharded = dataclasses.replace(gpt2, distribution=DistributionConfig(shard=True))
    total, block = total_parameters(gpt2.model), 12 * 96**2 + 13 * 96
    whole, shared = compute_costs_per_process(gpt2, 8), compute_costs_per_process(sharded, 8)
    assert (whole["weights"], whole["gradients"], whole["optimizer"]) == (4 * total, 4 * total, 8 * total)
    assert shared["optimizer"] == whole["optimizer"] // 8
    around = total - 12 * block
    assert shared["weights"] == 4 * (total // 8 + around + 2 * block)
    assert whole["total"] == sum(whole[part] for part in ("weights", "gradients", "optimizer", "activations", "loss"))
    assert shared["activations"] == whole["activations"]
    in_turns = dataclasses.replace(sharded, training=dataclasses.replace(gpt2.training, micro_batch_size=1))
    assert compute_costs_per_process(in_turns, 8)["gradients"] == 4 * total  # which add up whole
