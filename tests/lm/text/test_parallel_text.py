"""Pairs are read alike from two files, from tabs and from JSON Lines; files that do not belong together are refused."""

import gzip
import io
import json
import random
from pathlib import Path

import pytest

from lm.config.data import FilesConfig, ParallelTextConfig
from lm.errors import InputError, UsageError
from lm.text.parallel_text import ParallelText, find_misalignment, find_parallel_texts
from tests.lm.corpus.parallel_text import lines, write

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
    return [(pair.source, pair.target) for pair in found.pairs()]


def joined(side: int, end: str = "\n") -> str:
    return end.join(pair[side] for pair in PAIRS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_any_line_end(end, last, mark, tmp_path):
    found = aligned(tmp_path, (mark + joined(0, end) + last).encode(), (joined(1) + "\n").encode())
    assert texts(found) == PAIRS
    assert [pair.line for pair in found.pairs()] == [1, 2, 3, 4]


def test_blank_lines_at_the_end_count(tmp_path):
    assert texts(aligned(tmp_path, b"a\n\n\n", b"b\n\nc")) == [("a", "b"), ("", ""), ("", "c")]
    assert texts(aligned(tmp_path, b"", b"")) == []


def test_tabs_json_lines_and_compression_say_the_same(tmp_path):
    tabs = "".join(f"{source}\t{target}\r\n" for source, target in PAIRS)
    objects = "".join(json.dumps({"en": source, "de": target, "x": 1}) + "\n" for source, target in PAIRS)
    named = ParallelTextConfig(source_column="en", target_column="de")
    assert texts(one_file(tmp_path, "pairs.tsv", tabs)) == PAIRS
    assert texts(one_file(tmp_path, "pairs.tsv.gz", gzip.compress(tabs.encode()))) == PAIRS
    assert texts(one_file(tmp_path, "pairs.jsonl", objects, named)) == PAIRS
    assert one_file(tmp_path, "pairs.jsonl", objects, named).languages == ("en", "de")


@pytest.mark.parametrize(("line", "message"), [("no tab", "line 2 has 0 tabs"), ("a\tb\tc", "line 2 has 2 tabs")])
def test_a_line_has_one_tab(line, message, tmp_path):
    with pytest.raises(InputError, match=rf"pairs.tsv: {message}"):
        texts(one_file(tmp_path, "pairs.tsv", f"a\tb\n{line}\n"))


def test_all_malformed_lines_are_named_at_once(tmp_path):
    with pytest.raises(InputError, match=r"line 2 has 0 tabs; .*; malformed too: line 4, line 5$"):
        texts(one_file(tmp_path, "pairs.tsv", "a\tb\nno tab\n\nthree\tof\tthem\nnone\nc\td\n"))


TABLE = "english\tgerman\tid\n" + "A longer line of text.\tEine lange Zeile Text.\tf1\n" * 9


def test_a_table_of_several_columns_says_what_to_name(tmp_path):
    with pytest.raises(UsageError, match=r"which columns .* 1 'english', 2 'german', 3 'id'$") as error:
        one_file(tmp_path, "pairs.tsv", TABLE)
    assert error.value.settings == ("source_column", "target_column", "header")


def test_a_header_that_is_read_as_a_pair_is_noted(tmp_path):
    numbers = ParallelTextConfig(source_column="1", target_column="2")
    found = one_file(tmp_path, "pairs.tsv", TABLE, numbers)
    assert texts(found)[0] == ("english", "german")
    assert "('english' and 'german') is read as a pair, but looks like a header" in found.notes[0]
    assert not one_file(tmp_path, "pairs.tsv", TABLE.partition("\n")[2], numbers).notes
    named = ParallelTextConfig(source_column="english", target_column="german")
    assert not one_file(tmp_path, "pairs.tsv", TABLE, named).notes


@pytest.mark.parametrize("header", ["english\tgerman", "en\tde", "english\tgerman\tid"])
@pytest.mark.parametrize("fields", [("german", "English"), ("foo", "bar"), ("1", "bar"), ("source", "bar")])
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv"])
def test_columns_that_are_not_there_are_named(tmp_path, header, fields, name):
    table = f"{header}\n" + "\t".join(["a line"] * len(header.split("\t"))) + "\n"
    config = ParallelTextConfig(source_column=fields[0], target_column=fields[1])
    with pytest.raises(UsageError, match=r"no column .*; its columns are 1 'en"):
        one_file(tmp_path, name, table if name == "pairs.tsv" else table.replace("\t", ","), config)


def test_the_columns_of_a_run_are_not_looked_for_without_a_header(tmp_path):
    path, config = tmp_path / "pairs.tsv", ParallelTextConfig(source_column="german", target_column="english")
    path.write_text("eine Zeile\ta line\n")
    (found,) = find_parallel_texts(config, FilesConfig(header=False), pairs=[str(path)])
    assert texts(found) == [("eine Zeile", "a line")]


WORDS = "".join(f"{word}\t{word[::-1]}\n" for word in ("cat", "house", "go", "rain"))


@pytest.mark.parametrize("header", ["en\tde", "English\tGerman", "src\ttgt", "Satz\tÜbersetzung"])
@pytest.mark.parametrize(("name", "settings"), [("pairs.tsv", ("header",)), ("pairs.txt", ("format=tsv", "header"))])
def test_the_settings_of_the_note_leave_the_header_out(tmp_path, header, name, settings):
    is_known = header not in ("en\tde", "Satz\tÜbersetzung")  # whether it is one above short words too
    rows = WORDS if is_known else "A longer line of text, and more.\tEine lange Zeile Text, und mehr.\n" * 4
    found = one_file(tmp_path, name, f"{header}\n{rows}")
    assert [note.settings for note in found.notes] == [settings]
    path, reading = str(tmp_path / name), FilesConfig(format="tsv", header=True)
    (said,) = find_parallel_texts(ParallelTextConfig(), reading, pairs=[path])
    assert texts(said) == texts(found)[1:]
    assert not said.notes
    (denied,) = find_parallel_texts(ParallelTextConfig(), FilesConfig(format="tsv", header=False), pairs=[path])
    assert texts(denied) == texts(found)
    assert not denied.notes
    assert not one_file(tmp_path, name, rows).notes


def test_a_row_with_a_stray_tab_is_named(tmp_path):
    named = ParallelTextConfig(source_column="english", target_column="german")
    for row, message in (
        ("a\tb\tc\td", "line 11: 4 fields, .* 3; is there a tab too many"),
        ("a\tb", "is a tab missing"),
    ):
        with pytest.raises(InputError, match=message):
            texts(one_file(tmp_path, "pairs.tsv", TABLE + row, named))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a", "targt": "b"}', r"no field 'target' \(did you mean 'targt'\?\).*"),
        ('{"source": "a", "target": 3}', "field 'target' is not text but a number"),
        ('{"source": "a"', "not JSON"),
        ("[]", "not a JSON object but a list"),
    ],
)
def test_json_that_holds_no_pair(line, message, tmp_path):
    with pytest.raises(InputError, match=f"pairs.jsonl: line 2: {message}"):
        texts(one_file(tmp_path, "pairs.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n'))


def test_bytes_that_are_no_text_are_named(tmp_path):
    with pytest.raises(InputError, match=r"text.de: not valid UTF-8 at byte offset 3 \(0xe4\)"):
        texts(aligned(tmp_path, b"a\nb\n", b"a\nb\xe4\n"))


def test_pairs_come_through_a_pipe(tmp_path, monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b"a\tb\n")

    monkeypatch.setattr("sys.stdin", Stdin)
    assert texts(find_parallel_texts(PLAIN, pairs=["-"])[0]) == [("a", "b")]


@pytest.mark.parametrize("side", [0, 1])
def test_unequal_files_name_counts_and_the_place(side, tmp_path):
    sides = lines(1200)
    del sides[side][700]
    counts = [f"{len(text):,}" for text in sides]
    files = find_parallel_texts(
        PLAIN, **{name: [path] for name, path in zip(("source", "target"), write(tmp_path, *sides), strict=True)}
    )
    with pytest.raises(
        InputError, match=rf"train.en has {counts[0]} lines and .*train.de has {counts[1]} lines: .*at or near line"
    ) as error:
        texts(files[0])
    place = int(str(error.value).split("near line ")[1].split(" ")[0])
    assert abs(place - 701) <= 8


def test_a_file_that_was_cut_short(tmp_path):
    sources, targets = lines(300)
    source, target = write(tmp_path, sources, targets[:200])
    files = find_parallel_texts(PLAIN, source=[source], target=[target])
    with pytest.raises(InputError, match=r"belong together up to line 200, where .*train.de ends"):
        texts(files[0])


SOURCES, TARGETS = lines(3000)

LENGTHS = [len(line) for line in SOURCES], [len(line) for line in TARGETS]


def without(lengths: list[int], places: set[int]) -> list[int]:
    return [length for place, length in enumerate(lengths) if place not in places]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("missing", [{1500}, {40}, {2900}, {700, 2000}, {1000, 1001, 1002}, set(range(800, 840))])
def test_the_first_missing_line_is_found(side, missing):
    found = find_misalignment(LENGTHS[1 - side], without(LENGTHS[side], missing))
    assert abs(found - min(missing)) <= 8


def test_many_missing_lines():
    missing = set(random.Random(0).sample(range(3000), 12))
    assert abs(find_misalignment(LENGTHS[0], without(LENGTHS[1], missing)) - min(missing)) <= 8


@pytest.mark.parametrize("kept", [2990, 1000, 0])
def test_a_text_that_ends_early(kept):
    assert find_misalignment(LENGTHS[0], LENGTHS[1][:kept]) == kept


def test_a_blank_line_too_many():
    longer = [*LENGTHS[0][:600], 0, *LENGTHS[0][600:]]
    assert abs(find_misalignment(longer, LENGTHS[1]) - 600) <= 8
