"""Slots computed by hand: two sentences with prefixes of three and two tokens, of which one gets two hypotheses."""

import torch

from lm.engine.tree_cache import SlotTable
from lm.model.kv_cache import DecoderCache, LayerKVCache


def cache(sentences: int, positions: int) -> DecoderCache:
    """Of one layer, with something in it."""
    made = DecoderCache([LayerKVCache()])
    read(made, sentences, positions)
    return made


def read(into: DecoderCache, sentences: int, positions: int) -> None:
    into.self_attention[0].extend(*torch.randn(2, sentences, 1, positions, 4))


def seen(mask) -> list[list[list[int]]]:
    """The slots that each query of each sentence sees."""
    return [[row.isfinite().nonzero().flatten().tolist() for row in rows[0]] for rows in mask.bias]


def test_each_row_attends_to_its_prefix_and_its_own_past():
    made = cache(2, 3)
    slots = SlotTable(made, 2, torch.zeros(1), prefix=torch.tensor([3, 2]))
    assert seen(slots.allocate_and_mask(2)) == [[[0, 1, 2, 3], [0, 1, 2, 3, 4]], [[0, 1, 3], [0, 1, 3, 4]]]
    assert slots.query_positions(2).tolist() == [[3, 4], [2, 3]]
    assert slots.key_positions(2).tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 2, 3]]
    read(made, 2, 2)
    assert slots.reorder(torch.tensor([0, 0, 1, 1])) is None
    assert seen(slots.allocate_and_mask(1)) == [
        [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 6]],
        [[0, 1, 3, 4, 5], [0, 1, 3, 4, 6]],
    ]
    assert slots.query_positions(1).tolist() == [[5, 5], [4, 4]]
    assert slots.key_positions(1).tolist() == [[0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 2, 3, 4, 4]]
    read(made, 2, 2)
    assert slots.reorder(torch.tensor([3, 2])).tolist() == [1]  # the second sentence alone, its hypotheses exchanged
    assert (
        slots.rows_per_group,
        slots.n_groups,
        slots.length,
        made.self_attention[0].keys_and_values()[0].shape[0],
    ) == (2, 1, 3, 1)
    assert seen(slots.allocate_and_mask(1)) == [[[0, 1, 3, 4, 6, 7], [0, 1, 3, 4, 5, 8]]]


def test_sentences_may_stay_where_they_are_until_something_moves():
    made = cache(3, 1)
    slots, before = SlotTable(made, 3, torch.zeros(1)), made.self_attention[0].keys_and_values()[0]
    assert slots.allocate(1).tolist() == [[1]] * 3
    read(made, 3, 1)
    assert slots.reorder(torch.tensor([1, 2]), lazy=True) is None
    assert (slots.n_groups, slots.group_rows.tolist(), made.self_attention[0].keys_and_values()[0].shape[0]) == (
        2,
        [1, 2],
        3,
    )
    assert slots.reorder(torch.tensor([1]), lazy=True) is None
    assert slots.group_rows.tolist() == [2]
    assert slots.compact().tolist() == [2]
    assert slots.compact() is None
    assert slots.group_rows.tolist() == [0]
    assert torch.equal(made.self_attention[0].keys_and_values()[0][:, :, :1], before[2:])
    slots = SlotTable(made, 1, torch.zeros(1))
    slots.allocate(1)
    ragged = slots.reorder(torch.tensor([0, 0]), lazy=True)  # two hypotheses of one sentence, in one row
    assert (ragged, slots.rows_per_group, slots.group_rows.tolist()) == (None, 2, [0])
