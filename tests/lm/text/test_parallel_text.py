"""Pairs are read alike from two files, from tabs and from JSON Lines; files that do not belong together are refused."""

import json
from pathlib import Path

import pytest

from lm.config.run_config import ParallelTextConfig
from lm.errors import InputError
from lm.text.parallel_text import ParallelText, find_parallel_texts

PLAIN = ParallelTextConfig()

PAIRS = [("Two dogs.", "Zwei Hunde."), ("A\u2028B", "C\x0bD"), ("", "leer"), ("Ende", "end")]


def aligned(folder: Path, source: bytes, target: bytes) -> ParallelText:
    paths = folder / "text.en", folder / "text.de"
    for path, data in zip(paths, (source, target), strict=True):
        path.write_bytes(data)
    return find_parallel_texts(PLAIN, source=[str(paths[0])], target=[str(paths[1])])[0]


def one_file(folder: Path, name: str, data: str | bytes, config: ParallelTextConfig = PLAIN) -> ParallelText:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return find_parallel_texts(config, pairs=[str(folder / name)])[0]


def texts(found: ParallelText) -> list[tuple[str, str]]:
    return [(pair.source, pair.text) for pair in found.records()]


def joined(side: int, end: str = "\n") -> str:
    return end.join(pair[side] for pair in PAIRS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_any_line_end(end, last, mark, tmp_path):
    found = aligned(tmp_path, (mark + joined(0, end) + last).encode(), (joined(1) + "\n").encode())
    assert texts(found) == PAIRS
    assert [pair.line for pair in found.records()] == [1, 2, 3, 4]


def test_blank_lines_at_the_end_count(tmp_path):
    assert texts(aligned(tmp_path, b"a\n\n\n", b"b\n\nc")) == [("a", "b"), ("", ""), ("", "c")]
    assert texts(aligned(tmp_path, b"", b"")) == []


def test_tabs_json_lines_and_compression_say_the_same(tmp_path):
    tabs = "".join(f"{source}\t{target}\r\n" for source, target in PAIRS)
    objects = "".join(json.dumps({"en": source, "de": target, "x": 1}) + "\n" for source, target in PAIRS)
    named = ParallelTextConfig(source_column="en", target_column="de")
    assert texts(one_file(tmp_path, "pairs.tsv", tabs)) == PAIRS
    with pytest.raises(InputError, match="pairs.tsv: line 5: "):
        texts(one_file(tmp_path, "pairs.tsv", f"{tabs}no tab\n"))
    assert texts(one_file(tmp_path, "pairs.jsonl", objects, named)) == PAIRS
    assert one_file(tmp_path, "pairs.jsonl", objects, named).languages == ("en", "de")
