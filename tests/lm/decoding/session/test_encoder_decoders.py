import pytest
import torch

from lm.model.attention import capture_attention_weights
from tests.lm.decoding.encoder_decoders import SHAPES, make_model, random_ids, uncached
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import approx, assert_close

LENGTHS = torch.tensor([7, 3, 1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sizes", [[1] * 12, [12], [3, 1, 1, 6, 1]])
def test_cached_steps_equal_reading_each_row_alone_at_once(shape, sizes):
    model, source, tokens = make_model(shape), random_ids(3, 7), random_ids(3, 12, seed=1)
    expected = uncached(model, source, LENGTHS, tokens)
    steps = SessionDriver(model, source, LENGTHS)
    logits = torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)
    assert_close(logits, expected, model=model)
    last = SessionDriver(model, source, LENGTHS).feed(tokens, last_only=True)
    assert_close(last, expected[:, -1:], model=model)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_never_changes_results(shape):
    model, source, tokens = make_model(shape), random_ids(3, 7), random_ids(3, 5, seed=1)
    other = source.clone()
    for row, length in zip(other, LENGTHS, strict=True):
        row[length:] = 39
    longer = torch.cat((source, source), dim=1)
    expected = SessionDriver(model, source, LENGTHS).feed(tokens)
    for padded in (other, longer):
        assert_close(SessionDriver(model, padded, LENGTHS).feed(tokens), expected, model=model)
    assert expected.isfinite().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_future_target_tokens_never_change_past_logits(shape):
    model, source, tokens = make_model(shape), random_ids(3, 7), random_ids(3, 9, seed=1)
    other = tokens.clone()
    other[:, 5:] = 39
    left, right = (SessionDriver(model, source, LENGTHS).feed(one)[:, :5] for one in (tokens, other))
    assert_close(left, right, model=model)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_reordered_rows_continue_as_before(shape, seed):
    """Random walks over layouts, equal and ragged, long enough for slots to be given up."""
    model, source, lengths = make_model(shape), random_ids(3, 7), LENGTHS
    chance = torch.Generator().manual_seed(seed)
    steps, tokens = SessionDriver(model, source, lengths), torch.empty(3, 0, dtype=torch.long)
    for step in range(30):
        fresh = random_ids(len(tokens), 1 + (step % 7 == 3), seed=100 * seed + step)
        tokens = torch.cat((tokens, fresh), dim=1)
        logits = steps.feed(fresh)
        expected = uncached(model, source, lengths, tokens)[:, -fresh.shape[1] :]
        assert_close(logits, expected, model=model)
        if step % 3 == 0:
            size = int(torch.randint(1, 8, (1,), generator=chance))
            rows = torch.randint(len(tokens), (size,), generator=chance).sort().values
        else:  # hypotheses change places within their sentences, all of one size
            rows = torch.arange(len(tokens)).repeat_interleave(2 if len(tokens) < 6 else 1)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]


@pytest.mark.parametrize("length", [0, 4, 11])
@pytest.mark.parametrize("shape", SHAPES)
def test_truncate_is_as_if_the_rest_had_never_been_fed(length, shape):
    model, source, tokens, other = make_model(shape), random_ids(3, 7), random_ids(3, 12), random_ids(3, 6, seed=5)
    steps = SessionDriver(model, source, LENGTHS)
    steps.feed(tokens)
    steps.truncate(length)
    assert steps.length == length
    expected = uncached(model, source, LENGTHS, torch.cat((tokens[:, :length], other), dim=1))[:, length:]
    logits = torch.cat([steps.feed(part) for part in other.split([1, 4, 1], dim=1)], dim=1)
    assert_close(logits, expected, model=model)


def test_a_source_is_projected_once_for_all_hypotheses():
    model, calls = make_model(), []
    steps = SessionDriver(model, random_ids(3, 7), LENGTHS)
    steps.feed(random_ids(3, 1))
    steps.reorder(torch.arange(3).repeat_interleave(5))
    for block in model.decoder.blocks:
        block.cross_attention.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0].shape))
    steps.feed(random_ids(15, 1))
    assert calls == [(3, 5, 32)] * 2  # three sentences with five queries each
    held = [layer.keys_and_values()[0] for layer in steps.cache._cache.cross_attention]
    assert [keys.shape[:3] for keys in held] == [(3, 4, 7)] * 2


def test_slots_that_none_remembers_are_given_up():
    steps = SessionDriver(make_model(positions="rotary"), random_ids(2, 7))
    steps.feed(random_ids(2, 1))
    rows, most = torch.arange(2).repeat_interleave(4), 0
    for step in range(200):
        steps.reorder(rows)  # each time all continue from the first of their sentence
        steps.feed(random_ids(8, 1, seed=step))
        rows = torch.tensor([0, 0, 0, 0, 4, 4, 4, 4])
        most = max(most, steps.cache._cache.length)
    assert steps.length == 201
    assert most < 201 + 4 * 20


def test_coverage_is_that_of_the_attention_weights_of_the_last_layer():
    model, source, tokens = make_model(), random_ids(3, 7), random_ids(3, 6, seed=1)
    steps = SessionDriver(model, source, LENGTHS, coverage=True)
    for part in tokens.split([1, 3, 2], dim=1):
        steps.feed(part)
    expected = []
    for one, length, row in zip(source, LENGTHS, tokens, strict=True):
        with capture_attention_weights(model.decoder.attention_layers(cross=True)[-1:]) as weights:
            model(one[None, :length], row[None])
        received = weights[0][0].double().mean(0).sum(0)  # over heads, then over target positions
        expected.append(float(received.clamp(max=1).log().sum()))
    assert steps.coverage().tolist() == approx(expected, model=model)
    rows = torch.tensor([0, 0, 2, 2])
    steps.reorder(rows)
    assert steps.coverage().tolist() == approx([expected[row] for row in rows], model=model)
    plain = SessionDriver(model, source, LENGTHS).feed(tokens)
    watched = SessionDriver(model, source, LENGTHS, coverage=True).feed(tokens)
    assert torch.equal(plain, watched)
