"""Examples and conversations as batches: every row once an epoch, and what is learned within the context."""

import json
from pathlib import Path

import pytest

from lm.config.run_config import IGNORE_INDEX, DataConfig
from lm.corpus import open_split
from lm.data.windows import Rows
from lm.errors import InputError
from lm.text.find import find_text_files
from tests.lm.corpus.preparing import prepare
from tests.lm.corpus.small_examples import drawn, lines, source, tokenizer

BYTES = tokenizer()
CHAT = BYTES.with_chat_template()


def examples(folder: Path, pairs, *, context: int, rows: int = 3) -> Rows:
    config = DataConfig(validation="0.2")
    prepared = prepare([source(folder, lines(pairs))], BYTES, config, folder / "tokens").folder
    train, validation = open_split(prepared, "train"), open_split(prepared, "validation")
    return Rows(train, validation, context=context, rows=rows, seed=1)


def conversations(folder: Path, lengths: list[int], *, context: int) -> Rows:
    """Conversations of so many turns, in which each reply is `reply` and the number of its turn."""
    path = folder / "chat.jsonl"
    said = [
        [("user", f"{number} asks {turn}"), ("assistant", f"reply {turn}")]
        for number, count in enumerate(lengths)
        for turn in range(count)
    ]
    rows, first = [], 0
    for count in lengths:
        messages = [{"role": role, "content": text} for pair in said[first : first + count] for role, text in pair]
        rows.append(json.dumps({"messages": messages}))
        first += count
    path.write_text("\n".join(rows))
    config = DataConfig(validation="0.3")
    prepared = prepare(find_text_files([str(path)], config), CHAT, config, folder / "tokens").folder
    train, validation = open_split(prepared, "train"), open_split(prepared, "validation")
    return Rows(train, validation, context=context, rows=2, seed=1)


def learned(batches) -> list[str]:
    return [CHAT.decode(targets[targets != IGNORE_INDEX]) for batch in batches for targets in batch.targets]


def test_every_example_comes_once_an_epoch_and_its_completion_is_learned(tmp_path):
    pairs = drawn(60)
    data = examples(tmp_path, pairs, context=80)
    trained = [text for first in range(0, data.samples, 3) for text in learned([data.batch(first)])][: data.samples]
    held_out = learned(data.validation())
    assert sorted(trained + held_out) == sorted(completion for _, completion in pairs)
    assert data.tokens == sum(len(text) + 1 for text in trained)
    assert data.validation_bytes == sum(len(text) for text in held_out)


def test_the_first_held_out_batches_are_typical(tmp_path):
    data = examples(tmp_path, [(f"{n}{'x' * (n % 60)}", "y") for n in range(9000)], context=80)
    widths = [batch.inputs.shape[1] for batch in data.validation()]
    assert widths != sorted(widths)


def test_a_longer_prompt_loses_its_beginning(tmp_path):
    data = examples(tmp_path, [("x" * 50 + "yz", "ab")] * 3 + [("q", "c")] * 3, context=8, rows=6)
    rows = {tuple(row[row > 0].tolist()) for row in data.batch(0).inputs}
    end = BYTES.end_of_text
    long, short = (end, *BYTES.encode("xxxyzab")), (end, *BYTES.encode("qc"))
    assert rows <= {long[:1] + long[-7:], short}


def test_a_completion_that_does_not_fit_is_left_out(tmp_path):
    data = examples(tmp_path, [("a", "b"), ("a", "c" * 20), ("d", "e" * 19), ("f", "g"), ("h", "i")], context=20)
    batches = [data.batch(first) for first in range(0, data.samples, 3)] + list(data.validation())
    assert {*learned(batches)} == {"b", "e" * 19, "g", "i"}


@pytest.mark.parametrize("context", [40, 60, 200])
def test_only_replies_within_the_context_are_learned(tmp_path, context):
    data = conversations(tmp_path, [1, 2, 3, 4, 3, 2, 1, 5], context=context)
    batches = [data.batch(first) for first in range(0, data.samples, 2)]
    texts = learned(batches)
    assert all(text.startswith("reply 0") for text in texts)
    assert all(batch.inputs.shape[1] <= context for batch in batches)
    if context == 200:
        assert sum(text.count("reply") for text in texts[: data.samples] + learned(data.validation())) >= 21
    assert data.validation_bytes == sum(len(text.encode()) for text in learned(data.validation()))


def test_a_context_without_any_reply_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing that is learned fits into the context of 8 tokens"):
        conversations(tmp_path, [1, 1, 1], context=8)
