"""The fastest type is taken where it costs nothing else; none of these tests is about speed."""

import pytest

from lm.benchmark.dtypes import DtypeMeasurement, measure_and_record_dtype, select_fastest_dtype
from lm.config.hardware import HardwareConfig
from lm.engine.compiled.build import compile_decode_step
from lm.engine.fastest_dtype import decoding_dtype, read_recorded_dtypes
from lm.kernels import code_cache
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run
from tests.lm.machine_code import kept_code

CPU = HardwareConfig(device="cpu")


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ({}, "int8"),
        ({"time_ratios": {"usual": 0.95, "other": 0.5}}, "bfloat16"),  # hardly faster at the most usual work
        ({"time_ratios": {"usual": 0.5, "other": 1.2}}, "bfloat16"),  # slower at other work
        ({"bits_per_byte_ratio": 1.002}, "bfloat16"),
        ({"bits_per_byte_ratio": 0.9}, "int8"),
        ({"load_delay": 2.0}, "bfloat16"),
        ({"time_ratios": {"usual": 0.7, "other": 0.2}}, "bfloat16"),  # not the fastest at the most usual work
    ],
)
def test_the_fastest_at_the_most_usual_work_that_costs_nothing_else(changed, chosen):
    figures = {"time_ratios": {"usual": 0.5, "other": 1.0}, "bits_per_byte_ratio": 1.0005, "load_delay": 0.2, **changed}
    others = [
        DtypeMeasurement("bfloat16", {"usual": 0.6, "other": 0.9}, 1.0, 0.0),
        DtypeMeasurement("float16", {"usual": 0.1, "other": 2.0}, 1.0, 0.0),
    ]
    assert select_fastest_dtype([*others, DtypeMeasurement("int8", **figures)]) == chosen


_WIDE = {"d_model": 192, "n_heads": 3, "n_layers": 3}
"""1.4M parameters."""


@pytest.mark.medium
def test_a_new_run_decodes_in_the_dtype_that_was_measured_and_recorded(tmp_path, pytestconfig):
    pytest.importorskip("numba")
    with kept_code(pytestconfig):
        compile_decode_step()
        run = make_run(tmp_path / "run", **_WIDE)
        chosen = measure_and_record_dtype(run, CPU)
        dtype = "float32" if chosen is None else chosen.dtype
        assert chosen is None or chosen.is_acceptable
        assert read_recorded_dtypes(find_checkpoint(run)) == {"cpu": dtype}
        assert decoding_dtype(run, CPU) == dtype


def test_without_compiled_code_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code_cache.is_complete.cache_clear()
    run = make_run(tmp_path / "run", **_WIDE)
    assert measure_and_record_dtype(run, CPU) is None
    assert not read_recorded_dtypes(find_checkpoint(run))
    code_cache.is_complete.cache_clear()
