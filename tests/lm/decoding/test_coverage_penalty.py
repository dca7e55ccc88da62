"""Coverage, computed by hand."""

import math

import pytest
import torch

from lm.decoding.beam_search import CoveragePenalty


def test_attention_adds_up_to_one_and_padding_counts_nothing():
    coverage = CoveragePenalty(1.0, [(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 2]))])
    coverage.add([torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]])])
    coverage.add([torch.tensor([[0.75, 0.0, 0.25], [0.25, 0.75, 0.0]])])
    expected = [math.log(0.25) + math.log(0.5), math.log(0.75)]
    assert coverage.penalties().tolist() == pytest.approx(expected)
    coverage.select(torch.tensor([1, 1, 0]))
    assert coverage.penalties().tolist() == pytest.approx([expected[1], expected[1], expected[0]])
