"""Int8 weights, the compiled step, and the type that is fastest, from the command line."""

import json

import pytest

from cli.main import run
from lm import benchmark
from lm.engine import read_recorded_dtypes
from lm.hardware import native_dtypes
from lm.kernels import code_cache
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import TEXT, make_run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("int8") / "run")


def test_perplexity_is_nearly_that_of_float32(model, tmp_path, succeed):
    (tmp_path / "text.txt").write_text(TEXT)
    of_32, of_8 = (
        json.loads(succeed("perplexity", model, tmp_path / "text.txt", "--dtype", dtype, "--json"))["total"]
        for dtype in ("float32", "int8")
    )
    assert of_8["tokens"] == of_32["tokens"]
    assert of_8["nats"] != of_32["nats"]
    assert of_8["nats"] == pytest.approx(of_32["nats"], rel=0.01)


@pytest.fixture
def quick(monkeypatch):
    """Without numba, and without the time that precise measurements take."""
    monkeypatch.setattr(code_cache, "is_installed", lambda: False)
    monkeypatch.setattr(benchmark.compare_dtypes, "__kwdefaults__", {"seconds": 0.0})


@pytest.mark.usefixtures("quick")
def test_what_is_measured_to_be_fastest_is_remembered(place, succeed, capsys, monkeypatch):
    compared = place / "run"
    monkeypatch.setattr(benchmark, "select_fastest_dtype", lambda figures: (figures and figures[-1].dtype) or "float32")
    capsys.readouterr()
    assert run(["compile", str(compared)]) == 0
    *figures, last = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in figures] == [*native_dtypes("cpu")[1:]]
    assert all("times as fast as float32" in line and "bits/byte" in line for line in figures)
    chosen = read_recorded_dtypes(find_checkpoint(compared)).get("cpu", "float32")
    assert chosen == native_dtypes("cpu")[-1]
    assert last == f"{compared}: --dtype auto is {chosen} from now on"
    told_auto, told_chosen = (
        succeed("generate", compared, "one", "--dtype", dtype, "--seed", "1", "--json") for dtype in ("auto", chosen)
    )
    assert told_auto == told_chosen
