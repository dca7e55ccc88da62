"""A corpus is its files without those held out; a tokenizer is trained on it once."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.corpus import read_training_texts, scan_corpus, train_tokenizer
from lm.errors import InputError
from lm.text.files import find_text_files
from tests.lm.corpus.preparing import written

WHOLE = DataConfig(validation="0")


def test_what_there_is_of_text(tmp_path: Path) -> None:
    found = scan_corpus(written(tmp_path, "é\n<|endoftext|>\ntwo", "three"), DataConfig(validation="0.25"))
    assert [file.documents for file in found.files] == [2, 1]
    assert (found.bytes, found.files_bytes, found.fraction) == (11, 11, Fraction(1, 4))
    assert (found.name, found.has_few_documents) == ("corpus-0.txt, corpus-1.txt", True)


def test_files_held_out_are_left_out_of_the_rest(tmp_path: Path) -> None:
    files = written(tmp_path, "train", "held out")
    found = scan_corpus(files, DataConfig(validation=str(files[1].path)))
    assert [one.file.name for one in found.files] == ["corpus-0.txt"]
    assert [one.bytes for one in found.validation_files] == [8]
    assert (found.bytes, found.files_bytes, found.fraction) == (13, 5, 0)
    assert list(read_training_texts(found)) == ["train"]
    with pytest.raises(InputError, match="no text is left to train on"):
        scan_corpus(files[1:], DataConfig(validation=str(files[1].path)))


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus-0\.txt, corpus-1\.txt: the corpus is empty"):
        scan_corpus(written(tmp_path, "", "<|endoftext|>\n"), WHOLE)


def test_a_tokenizer_learns_from_prompts_and_completions(tmp_path: Path) -> None:
    (tmp_path / "task.jsonl").write_text('{"prompt": "ab", "completion": "cd"}\n{"prompt": "", "completion": "e"}\n')
    found = scan_corpus(
        find_text_files([str(tmp_path / "task.jsonl")], DataConfig(supervised=True)), DataConfig(supervised=True)
    )
    assert list(read_training_texts(found)) == ["abcd", "e"]
    made = train_tokenizer(found, TokenizerConfig(kind="char"), special_tokens=["<|endoftext|>"])
    assert made.decode(made.encode("abcde")) == "abcde"
