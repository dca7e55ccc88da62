"""Parts follow from the files alone, and together they are the corpus."""

import dataclasses
from fractions import Fraction

import pytest

from lm.config.data import DataConfig
from lm.corpus import text_corpus
from lm.corpus.text_corpus import Chunk, HeldOutRule, scan_corpus, split_into_chunks
from lm.text.text_files import FileRange
from tests.lm.corpus.preparing import written

SEPARATOR = "<|endoftext|>\n"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(text_corpus, "CHUNK_BYTES", 100)


def places(found: list[Chunk]) -> list[list[tuple[str, FileRange | None]]]:
    return [[(chunk_input.file.name, chunk_input.file_range) for chunk_input in part.inputs] for part in found]


def test_small_files_share_a_part_and_large_ones_are_divided(tmp_path):
    large = SEPARATOR.join(["x" * 70 + "\n"] * 4)  # documents that end at 85, 170, 255 and 326
    corpus = scan_corpus(written(tmp_path, "a" * 60, "b" * 30, "c" * 20, large, "d" * 99), DataConfig())
    assert places(split_into_chunks(corpus, HeldOutRule(0))) == [
        [("corpus-0.txt", None), ("corpus-1.txt", None), ("corpus-2.txt", None)],
        [("corpus-3.txt", FileRange(0, 170))],
        [("corpus-3.txt", FileRange(170, 326))],
        [("corpus-4.txt", None)],
    ]


def test_a_boundary_is_counted_from_the_beginning_of_each_file(tmp_path):
    corpus = scan_corpus(written(tmp_path, "a" * 60 + f"\n{SEPARATOR}", "b" * 30), DataConfig())
    (part,) = split_into_chunks(corpus, HeldOutRule(5, end=Fraction(1, 3)))
    assert [chunk_input.boundary for chunk_input in part.inputs] == [40, 20]


def test_all_of_the_files_for_validation_is_held_out(tmp_path):
    files = written(tmp_path, "a" * 100, "b" * 30)
    corpus = scan_corpus(files, DataConfig(validation=str(files[1].path)))
    first, second = split_into_chunks(corpus, HeldOutRule(0))
    assert [(one.number, one.held_out) for one in (*first.inputs, *second.inputs)] == [
        (0, HeldOutRule(0)),
        (1, HeldOutRule(1 << 64)),
    ]


def test_there_are_not_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(text_corpus, "_MAX_CHUNKS", 3)
    corpus = scan_corpus(written(tmp_path, *["a" * 100] * 9), DataConfig())
    assert len(split_into_chunks(corpus, HeldOutRule(0))) == 3


def test_a_key_depends_on_all_that_the_tokens_do(tmp_path):
    files = written(tmp_path, "a" * 60, "b" * 30)
    (part,) = split_into_chunks(scan_corpus(files, DataConfig()), HeldOutRule(5))
    (same,) = split_into_chunks(
        scan_corpus(written(tmp_path, "a" * 60, "b" * 30), DataConfig(validation="0.2")), HeldOutRule(5)
    )
    assert part.key("t") == same.key("t")
    first = part.inputs[0]
    others = [
        dataclasses.replace(part, separator="%%"),
        Chunk(part.inputs[:1], part.separator),
        *(
            Chunk((dataclasses.replace(first, **change), part.inputs[1]), part.separator)
            for change in (
                {"identity": "other"}, {"file_range": FileRange(0, 60)}, {"held_out": HeldOutRule(6)},
                {"boundary": 0}, {"number": 7},
            )
        ),
    ]  # fmt: skip
    assert len({part.key("t"), part.key("u"), *(other.key("t") for other in others)}) == 9
