"""The suffix of a file says what is written, for one map or for those of many lines."""

from __future__ import annotations

import json

from cli.main import run
from tests.cli.attention.pages import Cells
from tests.cli.toy_translation import SOURCE, TARGET, pairs


def test_the_suffix_selects_the_format(succeed, translation_run, tmp_path):
    for suffix in ("txt", "json", "jsonl", "pharaoh"):
        assert succeed("attention", translation_run, SOURCE, "--target", TARGET, "-o", tmp_path / f"a.{suffix}") == ""
    assert (tmp_path / "a.pharaoh").read_text() == "0-3 1-2 2-1 3-0\n"
    assert json.loads((tmp_path / "a.json").read_text())["alignments"] == "0-3 1-2 2-1 3-0"
    assert (tmp_path / "a.txt").read_text() == succeed("attention", translation_run, SOURCE, "--target", TARGET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.jsonl", "a.pharaoh", "a.txt"]


def translated(capsys, *arguments):
    """The lines of `lm translate …`."""
    code = run(["translate", *map(str, arguments)])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out.splitlines()


def test_translate_writes_a_map_a_line(capsys, translation_run, tmp_path):
    known = pairs(5, seed=99)
    sources = [source for source, _ in known]
    (tmp_path / "test.en").write_text("\n".join([*sources[:2], "", *sources[2:]]) + "\n")
    plain = translated(capsys, translation_run, tmp_path / "test.en")
    assert translated(capsys, translation_run, tmp_path / "test.en", "--attention", tmp_path / "a.jsonl") == plain
    maps = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert ["\t".join(one["texts"]) for one in maps] == [
        "\t".join(pair) for pair in zip([*sources[:2], "", *sources[2:]], plain, strict=True)
    ]
    assert maps[2]["alignments"] == ""
    translated(capsys, translation_run, tmp_path / "test.en", "--attention", tmp_path / "a.pharaoh")
    assert (tmp_path / "a.pharaoh").read_text().split("\n")[:-1] == [one["alignments"] for one in maps]
    translated(capsys, translation_run, tmp_path / "test.en", "--attention", tmp_path / "a.html")
    page = Cells((tmp_path / "a.html").read_text())
    assert page.open == []
    assert len(page.titles) == sum(len(one["queries"]["labels"]) * len(one["keys"]["labels"]) for one in maps)


def test_a_prefix_is_part_of_the_queries(capsys, translation_run, tmp_path):
    (tmp_path / "test.en").write_text("sun one fox\n")
    flags = ["--prefix", "Fuchs", "--attention", tmp_path / "a.json"]
    (line,) = translated(capsys, translation_run, tmp_path / "test.en", *flags)
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["queries"]["labels"] == [*line.split(), "</s>"]
    assert line.startswith("Fuchs")
    assert report["alignments"].split()[-1] == "2-0"
