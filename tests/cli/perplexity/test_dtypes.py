"""One run in several dtypes: each as `--dtype` alone would have it."""

from __future__ import annotations

import pytest

from cli.main import run
from lm.hardware import inference_dtypes
from tests.cli.small_runs import make_run


def test_each_type_is_measured_as_alone(report, succeed, runs, texts):
    reported = report(runs["bpe"], texts, "--compare-dtypes", "--device", "cpu")
    assert tuple(cost["dtype"] for cost in reported["types"]) == inference_dtypes("cpu")
    first = reported["types"][0]
    for cost in reported["types"]:
        alone = report(runs["bpe"], texts, "--dtype", cost["dtype"], "--device", "cpu")["total"]
        assert (cost["nats"], cost["bits_per_byte"]) == pytest.approx((alone["nats"], alone["bits_per_byte"]))
        assert cost["difference_percent"] == pytest.approx(100 * (alone["nats"] / first["nats"] - 1), abs=1e-6)
    assert (reported["context"], reported["model"]["run"]) == (32, str(runs["bpe"]))
    table = succeed("perplexity", runs["bpe"], texts, "--compare-dtypes", "--device", "cpu").splitlines()
    assert table[0].split() == ["type", "bits/byte", "difference", "weights", "tokens/s"]
    assert [line.split()[0] for line in table[1 : 1 + len(reported["types"])]] == list(inference_dtypes("cpu"))


def test_examples_are_no_text(capsys, tmp_path):
    supervised = make_run(tmp_path / "supervised", supervised=True)
    (tmp_path / "examples.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    assert run(["perplexity", str(supervised), str(tmp_path / "examples.jsonl"), "--compare-dtypes"]) == 2
    assert "--compare-dtypes has no effect on examples" in capsys.readouterr().err


def test_nothing_is_no_text(capsys, runs, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "empty.txt"), "--compare-dtypes"]) == 1
    assert "there is no text" in capsys.readouterr().err
