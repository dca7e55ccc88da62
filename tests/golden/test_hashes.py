"""Token IDs, shards, the order of data and initial weights are those that runs have been made with."""

import json

import pytest

from tests.golden import hashes

EXPECTED = json.loads(hashes.HASHES.read_text())


def test_tokens_and_shards(tmp_path):
    for name, found in hashes.prepared(tmp_path / "work").items():
        assert found == EXPECTED[name], name


def test_order_of_batches():
    for name, found in hashes.batches().items():
        assert found == EXPECTED[name], name


@pytest.mark.parametrize("name", hashes.MODELS)
def test_initial_weights_are_drawn_in_the_same_order(name):
    found = hashes.initial_values(name)
    expected = EXPECTED[f"weights {name}"]
    assert found.keys() == expected.keys()
    for parameter, numbers in found.items():
        assert numbers == pytest.approx(expected[parameter], rel=1e-4), parameter
