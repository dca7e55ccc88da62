"""Counts are in the text format of Prometheus."""

import re

from lm.serving.statistics import Histogram


def test_a_histogram_counts_durations_up_to_each_limit_and_adds_them_up():
    """A duration that equals a limit is within it, as Prometheus defines `le`."""
    seconds = [0.005, 0.01, 0.011, 0.3, 0.3, 2.5, 61.0]
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    *buckets, total, count = histogram.format("wait")
    found = {float(limit): int(within) for line in buckets
             for limit, within in re.findall(r'^wait_bucket\{le="(.+)"\} (\d+)$', line)}  # fmt: skip
    assert len(found) == len(buckets)
    assert {0.01, 2.5, 60.0, float("inf")} <= found.keys()
    assert found == {limit: sum(each <= limit for each in seconds) for limit in found}
    assert (total, count) == (f"wait_sum {sum(seconds):.6f}", f"wait_count {len(seconds)}")
