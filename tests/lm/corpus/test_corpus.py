"""A corpus is its files without those held out; a tokenizer is trained on it once."""

import math
from fractions import Fraction

import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.text_corpus import (
    compute_hash_bound,
    hash_text,
    load_or_train_tokenizer,
    parse_held_out_fraction,
    read_training_texts,
    scan_corpus,
    split_at,
)
from lm.errors import InputError, UsageError
from lm.text.documents import TextPiece
from lm.text.text_files import find_text_files
from tests.lm.corpus.preparing import written

WHOLE = DataConfig(validation="0")


def test_what_there_is_of_text(tmp_path):
    found = scan_corpus(written(tmp_path, "é\n<|endoftext|>\ntwo", "three"), DataConfig(validation="0.25"))
    assert [file.documents for file in found.files] == [2, 1]
    assert (found.bytes, found.files_bytes, found.fraction) == (11, 11, Fraction(1, 4))
    assert (found.name, found.has_few_documents) == ("corpus-0.txt, corpus-1.txt", True)


def test_files_held_out_are_left_out_of_the_rest(tmp_path):
    files = written(tmp_path, "train", "held out")
    found = scan_corpus(files, DataConfig(validation=str(files[1].path)))
    assert [one.file.name for one in found.files] == ["corpus-0.txt"]
    assert [one.bytes for one in found.validation_files] == [8]
    assert (found.bytes, found.files_bytes, found.fraction) == (13, 5, 0)
    assert list(read_training_texts(found)) == ["train"]
    with pytest.raises(InputError, match="no text is left to train on"):
        scan_corpus(files[1:], DataConfig(validation=str(files[1].path)))


def test_a_corpus_without_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"corpus-0\.txt, corpus-1\.txt: the corpus is empty"):
        scan_corpus(written(tmp_path, "", "<|endoftext|>\n"), WHOLE)


def test_a_tokenizer_learns_from_prompts_and_completions(tmp_path):
    (tmp_path / "task.jsonl").write_text('{"prompt": "ab", "completion": "cd"}\n{"prompt": "", "completion": "e"}\n')
    found = scan_corpus(
        find_text_files([str(tmp_path / "task.jsonl")], DataConfig(supervised=True)), DataConfig(supervised=True)
    )
    assert list(read_training_texts(found)) == ["abcd", "e"]
    made = load_or_train_tokenizer(found, TokenizerConfig(kind="char"), special_tokens=["<|endoftext|>"])
    assert made.decode(made.encode("abcde")) == "abcde"


@pytest.mark.parametrize(
    ("boundary", "parts"),
    [(1, ["a", "éé€𝄞"]), (2, ["aé", "é€𝄞"]), (3, ["aé", "é€𝄞"]), (4, ["aéé", "€𝄞"]), (6, ["aéé€", "𝄞"]),
     (7, ["aéé€", "𝄞"]), (8, ["aéé€", "𝄞"])],
)  # fmt: skip
def test_a_document_begins_at_the_first_character_from_the_boundary_on(boundary, parts):
    """Of one, two, two, three and four bytes."""
    found = list(split_at([TextPiece("aéé€𝄞", starts_document=False)], boundary))
    assert found == [TextPiece(parts[0], starts_document=False), TextPiece(parts[1], starts_document=True)]


def test_a_boundary_between_two_fragments_begins_a_document_with_the_second():
    given = [TextPiece("ab", starts_document=False), TextPiece("cd", starts_document=False)]
    for boundary, expected in ((0, [True, False]), (2, [False, True]), (4, [False, False])):
        assert [found.starts_document for found in split_at(given, boundary)] == expected


@pytest.mark.parametrize(
    ("validation", "fraction"),
    [("0.1", Fraction(1, 10)), ("1/3", Fraction(1, 3)), ("0", Fraction(0)), ("held.txt", None), ("1/0", None)],
)
def test_a_fraction_is_a_number_and_anything_else_names_files(validation, fraction):
    assert parse_held_out_fraction(validation) == fraction


@pytest.mark.parametrize("validation", ["1", "1.5", "-0.1"])
def test_a_fraction_out_of_range_is_refused(validation):
    with pytest.raises(UsageError, match="must be a fraction from 0 to below 1, or files"):
        parse_held_out_fraction(validation)


def test_hashes_below_the_bound_are_that_share_of_texts():
    hashes = [hash_text(str(number)) for number in range(10_000)]
    assert len(set(hashes)) == 10_000
    for fraction in (Fraction(0), Fraction(1, 10), Fraction(1, 3), Fraction(9, 10)):
        share = sum(found < compute_hash_bound(fraction) for found in hashes) / len(hashes)
        assert share == pytest.approx(float(fraction), abs=4 * math.sqrt(0.25 / len(hashes)))


@pytest.mark.parametrize(("count", "held_out"), [(0, 0), (1, 0), (2, 1), (10, 1), (19, 1), (20, 2), (99, 9)])
def test_of_few_texts_the_share_is_exact_and_at_least_one(count, held_out):
    hashes = [hash_text(str(number)) for number in range(count)]
    assert sum(found < compute_hash_bound(Fraction(1, 10), hashes) for found in hashes) == held_out
    assert compute_hash_bound(Fraction(0), hashes) == 0


@pytest.mark.parametrize(
    ("hashes", "held_out"), [([1, 1, 5, 7], 2), ([7, 5, 1, 1, 1], 3), ([5, 5, 5, 1], 1), ([3, 3, 3], 0)]
)
def test_of_few_texts_that_repeat_at_least_one_is_held_out_unless_all_are_equal(hashes, held_out):
    assert sum(found < compute_hash_bound(Fraction(1, 10), hashes) for found in hashes) == held_out
