"""Words are numbered as they come; read back they are the same tokens, however full the table."""

import random

import numpy as np

from lm.corpus.ragged import RaggedArray
from lm.corpus.tokenized_pairs import WordTable


def test_a_full_table_changes_no_token():
    chance = random.Random(0)
    sentences = RaggedArray.from_rows([[chance.randrange(9) for _ in range(chance.randint(1, 9))] for _ in range(50)])
    starts = np.array([chance.random() < 0.4 for _ in sentences.values])
    starts[np.append(0, sentences.ends[:-1])] = True
    for most in (0, 20, 1000):
        table = WordTable(most_tokens=most)
        words = table.words(sentences, starts)
        read = table.rows().take(words.values).merge_rows(words.ends)
        assert read.values.tolist() == sentences.values.tolist()
        assert read.ends.tolist() == sentences.ends.tolist()
        assert (len(words.values) == starts.sum()) == (most == 1000)
        assert len(table.rows().values) <= most + 9


def test_a_word_has_one_number_wherever_it_stands():
    table = WordTable()
    words = table.words(RaggedArray.from_rows([[1, 2, 3], [3, 1, 2]]), np.array([True, False, True, True, True, False]))
    assert [words.row(0).tolist(), words.row(1).tolist()] == [[0, 1], [1, 0]]
    assert [table.rows().row(number).tolist() for number in range(2)] == [[1, 2], [3]]
