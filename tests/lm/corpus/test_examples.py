"""Examples read back as they were written, and damage is named."""

import numpy as np
import pytest

from lm.corpus.tokenized_examples import index_file_name, open_examples
from lm.errors import InputError
from tests.lm.corpus.preparing import prepare
from tests.lm.corpus.small_examples import PAIRS, WHOLE, lines, source, tokenizer


def test_examples_read_back(tmp_path):
    prepared = prepare([source(tmp_path, lines(PAIRS))], tokenizer(), WHOLE, tmp_path / "out")
    found = open_examples(prepared.folder, "train")
    assert (len(found), found.files) == (len(PAIRS), (str(tmp_path / "task.jsonl"),))
    for number, (prompt, completion) in enumerate(PAIRS):
        ids, learned = found.read(number)
        assert ids.tolist() == [256, *prompt.encode(), *completion.encode(), 256]
        assert learned == len(completion.encode()) + 1
    assert found.lengths().sum() == len(found.tokens)
    assert found.records["line"].tolist() == [1, 2, 3, 4]


def test_damage_is_seen(tmp_path):
    prepared = prepare([source(tmp_path, lines(PAIRS))], tokenizer(), WHOLE, tmp_path / "out")
    path = prepared.folder / index_file_name("train")
    np.save(path, np.load(path)[:-1])
    with pytest.raises(InputError, match="train-examples.npy: missing or damaged"):
        open_examples(prepared.folder, "train")
    path.write_bytes(b"")
    with pytest.raises(InputError, match="train-examples.npy: missing or damaged"):
        open_examples(prepared.folder, "train")
