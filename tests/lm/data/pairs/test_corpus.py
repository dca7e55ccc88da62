from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from lm.config.data import DataConfig, ParallelConfig
from lm.data.pairs import corpus as parallel
from lm.data.pairs.corpus import ParallelCorpus
from lm.errors import InputError, UsageError
from lm.text.parallel import Aligned
from tests.lm.data.pairs.parallel_text import lines, write

PLAIN = ParallelConfig()
PAIRS = [("Two dogs.", "Zwei Hunde."), ("A\u2028B", "C\x0bD"), ("", "leer"), ("Ende", "end")]


def aligned(folder: Path, source: bytes, target: bytes) -> Aligned:
    paths = folder / "text.en", folder / "text.de"
    for path, data in zip(paths, (source, target), strict=True):
        path.write_bytes(data)
    return parallel.resolve(PLAIN, source=[str(paths[0])], target=[str(paths[1])])[0]


def one_file(folder: Path, name: str, data: str | bytes, config: ParallelConfig = PLAIN) -> Aligned:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return parallel.resolve(config, pairs=[str(folder / name)])[0]


def texts(found: Aligned) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in found.pairs()]


def joined(side: int, end: str = "\n") -> str:
    return end.join(pair[side] for pair in PAIRS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_any_line_end(end: str, last: str, mark: str, tmp_path: Path) -> None:
    found = aligned(tmp_path, (mark + joined(0, end) + last).encode(), (joined(1) + "\n").encode())
    assert texts(found) == PAIRS
    assert [pair.line for pair in found.pairs()] == [1, 2, 3, 4]


def test_blank_lines_at_the_end_count(tmp_path: Path) -> None:
    assert texts(aligned(tmp_path, b"a\n\n\n", b"b\n\nc")) == [("a", "b"), ("", ""), ("", "c")]
    assert texts(aligned(tmp_path, b"", b"")) == []


def test_tabs_json_lines_and_compression_say_the_same(tmp_path: Path) -> None:
    tabs = "".join(f"{source}\t{target}\r\n" for source, target in PAIRS)
    objects = "".join(json.dumps({"en": source, "de": target, "x": 1}) + "\n" for source, target in PAIRS)
    named = ParallelConfig(source_field="en", target_field="de")
    assert texts(one_file(tmp_path, "pairs.tsv", tabs)) == PAIRS
    assert texts(one_file(tmp_path, "pairs.tsv.gz", gzip.compress(tabs.encode()))) == PAIRS
    assert texts(one_file(tmp_path, "pairs.jsonl", objects, named)) == PAIRS
    assert one_file(tmp_path, "pairs.jsonl", objects, named).languages == ("en", "de")


@pytest.mark.parametrize(
    ("line", "message"),
    [("no tab", "line 2 has 0 tabs"), ("a\tb\tc", "line 2 has 2 tabs")],
)
def test_a_line_has_one_tab(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"pairs.tsv: {message}"):
        texts(one_file(tmp_path, "pairs.tsv", f"a\tb\n{line}\n"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a", "targt": "b"}', r"no field 'target' \(did you mean 'targt'\?\).*\(--target-field\)"),
        ('{"source": "a", "target": 3}', "field 'target' is not text but a number"),
        ('{"source": "a"', "not JSON"),
        ("[]", "not a JSON object but a list"),
    ],
)
def test_json_that_holds_no_pair(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"pairs.jsonl: line 2: {message}"):
        texts(one_file(tmp_path, "pairs.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n'))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text.de: not valid UTF-8 at byte offset 3 \(0xe4\)"):
        texts(aligned(tmp_path, b"a\nb\n", b"a\nb\xe4\n"))


def test_pairs_come_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"a\tb\n")

    monkeypatch.setattr("sys.stdin", Stdin)
    assert texts(parallel.resolve(PLAIN, pairs=["-"])[0]) == [("a", "b")]


@pytest.mark.parametrize("side", [0, 1])
def test_unequal_files_name_counts_and_the_place(side: int, tmp_path: Path) -> None:
    sides = lines(1200)
    del sides[side][700]
    counts = [f"{len(text):,}" for text in sides]
    files = parallel.resolve(
        PLAIN, **{name: [path] for name, path in zip(("source", "target"), write(tmp_path, *sides), strict=True)}
    )
    with pytest.raises(
        InputError, match=rf"train.en {counts[0]} and .*train.de {counts[1]} lines.*at or near line"
    ) as error:
        texts(files[0])
    place = int(str(error.value).split("near line ")[1].split(" ")[0])
    assert abs(place - 701) <= 8


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    sources, targets = lines(300)
    source, target = write(tmp_path, sources, targets[:200])
    files = parallel.resolve(PLAIN, source=[source], target=[target])
    with pytest.raises(InputError, match=r"belong together up to line 200, where .*train.de ends"):
        texts(files[0])


def survey(folder: Path, pairs: list[tuple[str, str]], validation: str = "0.1", **values: object) -> ParallelCorpus:
    data = "".join(f"{source}\t{target}\n" for source, target in pairs)
    config = ParallelConfig(**values)  # type: ignore[arg-type]
    return parallel.survey([one_file(folder, "all.tsv", data)], DataConfig(validation=validation), config)


def test_a_fraction_is_held_out_and_duplicates_stay_together(tmp_path: Path) -> None:
    sources, targets = lines(2000)
    pairs = [*zip(sources, targets, strict=True), *zip(sources, targets[::-1], strict=True)]
    split: dict[str, set[str]] = {}
    held = 0
    for name, _, pair in survey(tmp_path, pairs).routed():
        split.setdefault(pair.source, set()).add(name)
        held += name == "validation"
    assert all(len(names) == 1 for names in split.values())
    assert 0.08 < held / len(pairs) < 0.12


@pytest.mark.parametrize("count", [2, 10, 50])
def test_of_few_pairs_at_least_one_is_held_out(count: int, tmp_path: Path) -> None:
    corpus = survey(tmp_path, list(zip(*lines(count), strict=True)))
    held = [pair for name, _, pair in corpus.routed() if name == "validation"]
    assert len(held) == max(1, count // 10)


def test_files_for_validation(tmp_path: Path) -> None:
    sources, targets = lines(150)
    train = write(tmp_path, sources[:120], targets[:120])
    held = write(tmp_path, sources[120:], targets[120:], name="held")
    files, validation = (parallel.resolve(PLAIN, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    corpus = parallel.survey(files, DataConfig(), PLAIN, validation=validation)
    assert corpus.languages == ("en", "de")
    assert corpus.pairs == 150
    assert [name for name, _, _ in corpus.routed()] == ["train"] * 120 + ["validation"] * 30
    one = one_file(tmp_path, "held.tsv", "a\tb\n")
    by_name = parallel.survey(files, DataConfig(validation=one.name), PLAIN)
    assert [pair.source for name, _, pair in by_name.routed() if name == "validation"] == ["a"]


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("train.en", "train.de"), ("en", "de")),
        (("a.pt-BR.gz", "b.zh_Hans.txt"), ("pt-BR", "zh_Hans")),
        (("source.txt", "train.de"), (None, "de")),
        (("europarl-v7", "x.1"), (None, None)),
    ],
)
def test_languages_of_file_names(
    names: tuple[str, str], languages: tuple[str | None, str | None], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(b"a\n") if name.endswith(".gz") else b"a\n")
    files = parallel.resolve(PLAIN, source=[str(tmp_path / names[0])], target=[str(tmp_path / names[1])])
    assert parallel.survey(files, DataConfig(validation="0"), PLAIN).languages == languages


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 files of sources and 0 of targets"):
        parallel.resolve(PLAIN, source=[write(tmp_path, ["a"], ["b"])[0]])
    with pytest.raises(InputError, match="there are no pairs"):
        survey(tmp_path, [("", "")])
    with pytest.raises(UsageError, match="--bidirectional needs two languages"):
        survey(tmp_path, [("a", "b")], bidirectional=True)
    with pytest.raises(UsageError, match="one vocabulary"):
        ParallelConfig(bidirectional=True, separate_vocabularies=True)
    with pytest.raises(UsageError, match=r"source_language is a code such as de or pt-BR, not 'English!'"):
        ParallelConfig(source_language="English!")
