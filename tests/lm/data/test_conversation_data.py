"""Conversations are cut after the context, and only the assistant's tokens within it are learned."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX
from lm.corpus.tokenized_conversations import StoredConversations
from lm.corpus.tokenized_examples import EXAMPLE_DTYPE, StoredExamples
from lm.data.conversation_data import ConversationData
from lm.errors import InputError

MARKS = ["001100", "0101100011", "00000001", "0001", "00011"]
"""Of each token of a conversation whether the assistant wrote it; token n of conversation m is 10 m + n, and spells as
many bytes."""


def stored(marks: list[str]) -> StoredConversations:
    ends = np.cumsum([len(row) for row in marks])
    records = np.zeros(len(marks), dtype=EXAMPLE_DTYPE)
    records["end"], records["learned"] = ends, [row.count("1") for row in marks]
    ids = np.concatenate([10 * number + np.arange(len(row)) for number, row in enumerate(marks)])
    spelled = np.where([mark == "1" for mark in "".join(marks)], ids, -1).astype(np.int16)
    records["bytes"] = np.add.reduceat(spelled.clip(0), ends - [len(row) for row in marks])
    tokens = SimpleNamespace(read=lambda start, end: ids[start:end])
    examples = StoredExamples(tokens, records, ())  # type: ignore[arg-type]
    return StoredConversations(examples, spelled)


def usable(context: int) -> dict[int, str]:
    """The marks of the conversations that are left, up to the last token that is predicted."""
    cut = {number: row[: context + 1] for number, row in enumerate(MARKS)}
    return {number: row for number, row in cut.items() if "1" in row[1:]}


@pytest.mark.parametrize("context", range(1, 12))
def test_what_is_learned_is_what_the_assistant_wrote_within_the_context(context):
    data = ConversationData(stored(MARKS), stored(MARKS[:2]), context=context, rows=3, seed=1)
    kept = usable(context)
    assert data.samples == len(kept)
    assert data.tokens == sum(row.count("1") for row in kept.values())
    assert data.n_left_out == (len(MARKS) - len(kept)) + (2 - len({0, 1} & {*kept}))
    assert data.n_truncated == sum(len(MARKS[number]) > context + 1 for number in kept)
    assert data.describe_batch_size() == "3 conversations"
    learned = (target for batch in data.validation() for target in batch.targets.ravel().tolist())
    assert data.validation_bytes == sum(target for target in learned if target != IGNORE_INDEX)
    found = {}
    for consumed in range(0, data.samples, 3):
        batch = data.batch(consumed)
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            found[inputs[0] // 10] = [target for target in targets if target != IGNORE_INDEX]
    assert found == {
        number: [10 * number + place for place, mark in enumerate(row) if mark == "1"] for number, row in kept.items()
    }


@pytest.mark.parametrize(
    ("context", "warnings"),
    [
        (9, []),
        (8, ["1 of 5 conversations are longer than the context: their last turns are left out"]),
        (6, ["1 of 6 conversations have no reply within the context: they are left out",
             "1 of 4 conversations are longer than the context: their last turns are left out"]),
    ],
)  # fmt: skip
def test_what_is_cut_or_left_out_is_warned_of(context, warnings):
    data = ConversationData(stored(MARKS), stored(MARKS[:1]), context=context, rows=3, seed=1)
    advice = data.warnings()
    assert [str(each) for each in advice] == warnings
    assert all(list(each.settings) == ["context_length"] for each in advice)
    assert data.labelled_prompts(["a"], 3) == []


def test_a_context_without_any_reply_is_refused():
    with pytest.raises(InputError, match="no conversation has a reply within the context of 1 tokens: use a longer"):
        ConversationData(stored(MARKS[2:]), stored(MARKS), context=1, rows=1, seed=1)
