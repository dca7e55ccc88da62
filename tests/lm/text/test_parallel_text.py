"""Pairs are read from two files of any line end; files that do not belong together are refused."""

from pathlib import Path

import pytest

from lm.text.parallel_text import find_sources

PAIRS = [("Two dogs.", "Zwei Hunde."), ("A\u2028B", "C\x0bD"), ("", "leer"), ("Ende", "end")]


def aligned(folder, source, target):
    paths = folder / "text.en", folder / "text.de"
    for path, data in zip(paths, (source, target), strict=True):
        path.write_bytes(data)
    return find_sources(source=[str(paths[0])], target=[str(paths[1])])[0]


def texts(found):
    return [(pair.source, pair.text) for pair in found.records()]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_any_line_end(end, last, mark, tmp_path):
    source, target = map(end.join, zip(*PAIRS, strict=True))
    found = aligned(tmp_path, (mark + source + last).encode(), (target + "\n").encode())
    assert texts(found) == PAIRS
    assert [pair.line for pair in found.records()] == [1, 2, 3, 4]


def test_blank_lines_at_the_end_count(tmp_path):
    assert texts(aligned(tmp_path, b"a\n\n\n", b"b\n\nc")) == [("a", "b"), ("", ""), ("", "c")]
    assert texts(aligned(tmp_path, b"", b"")) == []


def test_a_file_named_again_has_another_partner(tmp_path):
    a, b, c = names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        Path(name).write_text(name)
    assert [*map(texts, find_sources(source=[a, a, c], target=[b, c, b]))] == [[(a, b)], [(a, c)], [(c, b)]]
