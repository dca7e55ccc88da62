"""Steps that read all again equal reading each row, its source before it, alone and at once."""

from __future__ import annotations

import pytest
import torch

from lm.config.decoding import TranslationConfig
from tests.lm.decoding.encoder_decoders import random_ids, uncached
from tests.lm.decoding.session.test_decoder_only import LENGTHS, make_model
from tests.lm.decoding.session_driver import SessionDriver
from tests.lm.decoding.test_translation import texts, untrained
from tests.tolerances import assert_close

COMPRESSED = {"attention": "compressed", "attention_block": 4}


@pytest.mark.parametrize("shape", ["rotary, grouped heads", "biases by bucket"])
@pytest.mark.parametrize("sizes", [[1] * 8, [8], [3, 1, 4]])
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_steps_equal_reading_each_row_alone_at_once(shape, sizes, lengths):
    model, source, tokens = make_model(shape, **COMPRESSED), random_ids(3, 7), random_ids(3, 8, seed=1)
    expected = uncached(model, source, torch.tensor([7, 7, 7]) if lengths is None else lengths, tokens)
    steps = SessionDriver(model, source, lengths)
    logits = torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)
    assert_close(logits, expected, model=model)
    last = SessionDriver(model, source, lengths).feed(tokens, last_only=True)
    assert_close(last, expected[:, -1:], model=model)


def test_reordered_and_truncated_rows_continue_as_before():
    model, source, tokens = make_model(**COMPRESSED), random_ids(3, 7), random_ids(3, 9, seed=1)
    steps, rows = SessionDriver(model, source, LENGTHS), torch.tensor([2, 0, 0, 1])
    steps.feed(tokens[:, :6])
    steps.reorder(rows)
    steps.truncate(4)
    assert steps.length == 4
    expected = uncached(model, source[rows], LENGTHS[rows], tokens[rows])[:, 4:]
    assert_close(steps.feed(tokens[rows, 4:]), expected, model=model)


def test_batches_change_no_translation():
    member = untrained(n_encoder_layers=0, decoder_only=True, **COMPRESSED)
    sources = ["The owl saw the fox.", "by the mill", "", "fox"]
    together = texts(member, sources, TranslationConfig(beam=3))
    assert texts(member, sources, TranslationConfig(beam=3, batch_tokens=1)) == together
