"""Coverage, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lm.decoding.steps.coverage import Coverage
from tests.lm.decoding.encoder_decoders import make_model


def test_attention_adds_up_to_one_and_padding_counts_nothing():
    coverage = Coverage(make_model(), torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 2]))
    coverage.add(torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]))
    coverage.add(torch.tensor([[0.75, 0.0, 0.25], [0.25, 0.75, 0.0]]))
    expected = [math.log(0.25) + math.log(0.5), math.log(0.75)]
    assert coverage.scores().tolist() == pytest.approx(expected)
    coverage.reorder(torch.tensor([1, 1, 0]))
    assert coverage.scores().tolist() == pytest.approx([expected[1], expected[1], expected[0]])


def test_without_lengths_every_token_counts():
    coverage = Coverage(make_model(), torch.zeros(1, 2, dtype=torch.long), None)
    coverage.add(torch.tensor([[1.0, 0.5]]))
    assert coverage.scores().item() == pytest.approx(math.log(0.5))
