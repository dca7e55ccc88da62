"""What is measured is what lm does; none of these tests is about speed."""

import pytest

from lm.benchmark import (
    CONCURRENCY,
    DtypeMeasurement,
    compare_dtypes,
    measure_and_record_dtype,
    measure_speed,
    select_fastest_dtype,
)
from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig, RunConfig, TrainingConfig
from lm.engine import compile_decode_step, decoding_dtype, read_recorded_dtypes
from lm.kernels import code_cache
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run
from tests.lm.machine_code import kept_code

CPU = HardwareConfig(device="cpu")


def test_each_task_is_measured_in_its_shape():
    model = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)
    training = TrainingConfig(steps=9, batch_size=4, micro_batch_size=2)
    config = RunConfig(model=model, training=training, hardware=HardwareConfig("cpu", "float32"), preset="minute")
    measured = list(measure_speed(config, seconds=0, generating=config.hardware))
    assert [each.task for each in measured] == ["training", "prefill", *["decoding"] * len(CONCURRENCY)]
    assert [each.rows for each in measured] == [4, 1, *CONCURRENCY]
    assert [each.length for each in measured] == [16, 8, 7, 7]
    for each in measured:
        assert each.tokens_per_second * each.seconds == pytest.approx(each.rows * each.length)


@pytest.mark.parametrize(
    ("times", "bits", "chosen"),
    [((0.5, 1.0), 1.0005, "int8"), ((0.95, 0.5), 1.0, "bfloat16"), ((0.5, 1.2), 1.0, "bfloat16"),
     ((0.5, 0.5), 1.002, "bfloat16"), ((0.7, 0.2), 0.9, "bfloat16")],
)  # fmt: skip
def test_the_fastest_for_one_text_that_costs_nothing_else_is_chosen(times, bits, chosen):
    figures = [DtypeMeasurement("bfloat16", (0.6, 0.9), 1.0), DtypeMeasurement("float16", (0.1, 2.0), 1.0)]
    assert select_fastest_dtype([*figures, DtypeMeasurement("int8", times, bits)]) == chosen


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
        assert read_recorded_dtypes(find_checkpoint(run)) == {"cpu": dtype}
        assert decoding_dtype(run, CPU) == dtype


def test_without_compiled_code_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code_cache.is_complete.cache_clear()
    run = make_run(tmp_path / "run", **_WIDE)
    assert measure_and_record_dtype(run, CPU) is None
    assert not read_recorded_dtypes(find_checkpoint(run))
    for measured in compare_dtypes(run, CPU, seconds=0):
        assert measured.bits_per_byte_ratio == pytest.approx(1, abs=0.05)
    code_cache.is_complete.cache_clear()
