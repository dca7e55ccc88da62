"""What a run or a preset is, as it is told."""

from __future__ import annotations

import json

from cli.main import run
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
    assert run(["info", "gpt2", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["parameters"]["total"] == 124_439_808
    assert "progress" not in described


def test_a_run_wins_over_a_preset_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "gpt2")
    assert run(["info", "gpt2", "--json"]) == 0
    assert "progress" in json.loads(capsys.readouterr().out)


def test_information_names_what_a_block_has_besides_the_usual(capsys):
    assert run(["info", "tiny"]) == 0
    assert "QK-norm, value residual" in capsys.readouterr().out
    assert run(["info", "gpt2"]) == 0
    assert "QK-norm" not in capsys.readouterr().out


def test_information_says_what_each_optimizer_keeps(capsys):
    def facts(preset):
        assert run(["info", preset]) == 0
        return capsys.readouterr().out

    assert "gradients and AdamW's two moments;" in facts("gpt2")
    assert "gradients and Muon's momentum (matrices) or AdamW's two moments (the rest);" in facts("tiny")
    assert "their average, gradients and Muon's" in facts("translation")


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
    assert "4 in one block in 2, 1 a token:" in found
    assert "decoder.blocks.1: 10% 20% 30% 40%" in found
    assert run(["info", "gpt2"]) == 0
    assert "experts" not in capsys.readouterr().out
