"""The fastest type is taken where it costs nothing else; none of these tests is about speed."""

from __future__ import annotations

import numpy as np
import pytest

from lm.benchmark import dtypes
from lm.benchmark.dtypes import DtypeMeasurement, compare_dtypes, select_fastest_dtype
from lm.config.hardware import HardwareConfig
from lm.data.batch import Batch
from lm.errors import InputError, UsageError
from tests.cli.small_runs import make_run

CPU = HardwareConfig(device="cpu")


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ({}, "int8"),
        ({"time_ratios": {"usual": 0.95, "other": 0.5}}, "bfloat16"),  # hardly faster at the most usual work
        ({"time_ratios": {"usual": 0.5, "other": 1.2}}, "bfloat16"),  # slower at other work
        ({"bits_ratio": 1.002}, "bfloat16"),
        ({"bits_ratio": 0.9}, "int8"),
        ({"load_delay": 2.0}, "bfloat16"),
        ({"time_ratios": {"usual": 0.7, "other": 0.2}}, "bfloat16"),  # not the fastest at the most usual work
    ],
)
def test_the_fastest_at_the_most_usual_work_that_costs_nothing_else(changed, chosen):
    figures = {"time_ratios": {"usual": 0.5, "other": 1.0}, "bits_ratio": 1.0005, "load_delay": 0.2, **changed}
    others = [
        DtypeMeasurement("bfloat16", {"usual": 0.6, "other": 0.9}, 1.0, 0.0),
        DtypeMeasurement("float16", {"usual": 0.1, "other": 2.0}, 1.0, 0.0),
    ]
    assert select_fastest_dtype([*others, DtypeMeasurement("int8", **figures)]) == chosen


def test_float32_is_what_is_left():
    assert (
        select_fastest_dtype([])
        == select_fastest_dtype([DtypeMeasurement("bfloat16", {"usual": 1.0}, 1.0, 0.0)])
        == "float32"
    )


def test_a_part_of_the_split_is_enough(monkeypatch):
    monkeypatch.setattr(dtypes, "_MAX_TARGETS", 100)
    ids = np.ones((40, 5), np.int64)
    parts = list(dtypes._limit_targets(iter([Batch(ids, ids)] * 3)))
    assert [part.rows for part in parts] == [16, 16]
    assert len(list(dtypes._limit_targets(iter([Batch(ids[:3], ids[:3])] * 3)))) == 3


def test_there_must_be_something_to_measure(tmp_path):
    with pytest.raises(InputError, match="the corpus of this run is not available"):
        compare_dtypes(make_run(tmp_path / "alone"), CPU)
    with pytest.raises(UsageError, match="fills blanks"):
        compare_dtypes(make_run(tmp_path / "masked", objective="masked"), CPU)
