"""What is measured is what lm does, and the figures fit together; none of these tests is about speed."""

import pytest

from lm.benchmark import (
    CONCURRENCY,
    DtypeMeasurement,
    HardwareLimits,
    decoding_flops,
    measure_and_record_dtype,
    measure_speed,
    prefill_flops,
    select_fastest_dtype,
)
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.engine.compiled.build import compile_decode_step
from lm.engine.fastest_dtype import decoding_dtype, read_recorded_dtypes
from lm.kernels import code_cache
from lm.model.cost import training_flops_per_token
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run
from tests.lm.machine_code import kept_code

CPU = HardwareConfig(device="cpu")


def test_each_task_is_measured_in_its_shape_and_figures_fit_together():
    model = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)
    training = TrainingConfig(steps=9, batch_size=4, micro_batch_size=2)
    config = RunConfig(model=model, training=training, hardware=HardwareConfig("cpu", "float32"), preset="minute")
    told: list[str] = []
    limits = HardwareLimits({"float32": 1e12}, 1e10)
    measured = list(measure_speed(config, limits, seconds=0, generating=config.hardware, progress=told.append))
    assert len(told) == len(measured) == 2 + len(CONCURRENCY)
    assert [each.task for each in measured] == ["training", "prefill", *["decoding"] * len(CONCURRENCY)]
    assert [each.rows for each in measured] == [1, 1, *CONCURRENCY]
    assert [each.length for each in measured][:2] == [16, 8]
    for each in measured:
        assert each.tokens_per_second * each.seconds == pytest.approx(each.rows * each.length)
        assert each.utilisation * 1e12 * each.seconds == pytest.approx(each.flops)
    assert measured[0].flops == pytest.approx(16 * training_flops_per_token(model))


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


FLAT = ModelConfig(vocab_size=10, context_length=8, d_model=4, n_layers=2, n_heads=1, d_ff=16, activation="gelu",
                     positions="learned")  # fmt: skip
BLOCKS = 2 * (4 * 4 * 4 + 2 * 4 * 16)  # queries, keys, values and what is made of them; up and down
HEAD = 10 * 4


def test_training_counts_matrices_the_head_and_attention():
    assert training_flops_per_token(FLAT) == 6 * (BLOCKS + HEAD) + 6 * 2 * 4 * 8


def test_a_prompt_needs_the_logits_of_its_last_token_alone():
    by_hand = 8 * 2 * BLOCKS + 2 * HEAD + 8 * 2 * 2 * 4 * 8
    assert prefill_flops(FLAT, rows=1, length=8) == pytest.approx(by_hand)
    assert prefill_flops(FLAT, rows=3, length=8) == pytest.approx(3 * by_hand)


def test_a_token_attends_to_those_before_it():
    """2 · layers · d_model · (6² - 5²): the pairs that a sixth token adds."""
    by_hand = 2 * (BLOCKS + HEAD) + 2 * 2 * 4 * (6**2 - 5**2)
    assert decoding_flops(FLAT, rows=1, start=5, tokens=1) == pytest.approx(by_hand)


def test_decoding_adds_up():
    parts = decoding_flops(FLAT, rows=2, start=3, tokens=1) + decoding_flops(FLAT, rows=2, start=4, tokens=2)
    assert decoding_flops(FLAT, rows=2, start=3, tokens=3) == pytest.approx(parts)
