"""`lm attention`: words look where they may, and maps come as text, JSON, pages and pictures."""

import io
import json
import re
import sys
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.attention import plot
from cli.attention.html_page import render_page
from cli.attention.rendering import describe
from cli.console.heat_map import fraction_colour, is_light
from cli.main import run
from lm.config.evaluation import AttentionConfig
from lm.evaluation.attention_maps import AttentionMap, Axis
from lm.evaluation.text_attention import TextAttention
from tests.cli.small_runs import make_run
from tests.cli.toy_translation import SOURCE, TARGET, pairs
from tests.lm.full_disk import full_disk


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gpt", n_layers=3, context_length=64)


class Cells(HTMLParser):
    """The numbers, titles and pictures of a page, and what is left open at its end."""

    def __init__(self, source):
        super().__init__()
        self.open, self.titles, self.pictures = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "img":
            self.pictures.append(values["src"])
        elif tag != "meta":
            self.open.append(tag)
        if tag == "td":
            self.titles.append(values.get("title"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


LAST_PLACE = 1e-6

"""Weights have six decimals."""


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_text_can_come_from_a_pipe(succeed, gpt, monkeypatch, arguments):
    expected = succeed("attention", gpt, "The owl 狐", "--json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("The owl 狐\n".encode())))
    assert succeed("attention", gpt, *arguments, "--json") == expected


def test_a_gpt_attends_to_itself_and_the_past(succeed, gpt):
    report = json.loads(succeed("attention", gpt, "The owl saw 狐 and the fox", "--json"))
    weights = np.array(report["weights"])
    assert weights.shape == (3, 2, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=weights.shape[-1] * LAST_PLACE)
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(report["mean"], weights.mean((0, 1)), atol=LAST_PLACE)
    assert report["keys"]["labels"] == ["<s>", "The", "owl", "saw", "狐", "and", "the", "fox"]
    assert report["kind"] == "self"


def test_words_of_a_translation_attend_to_their_source(succeed, translation_run):
    right = total = 0
    for source, target in pairs(10, seed=12345):
        report = json.loads(succeed("attention", translation_run, source, "--target", target, "--json"))
        found = {tuple(map(int, pair.split("-"))) for pair in report["alignments"].split()}
        last = len(source.split()) - 1
        right += len(found & {(last - place, place) for place in range(last + 1)})
        total += last + 1
        weights = np.array(report["weights"])
        np.testing.assert_allclose(weights.sum(-1), 1, atol=weights.shape[-1] * LAST_PLACE)
    assert right / total > 0.9


def test_an_encoder_attends_to_its_source(succeed, translation_run):
    report = json.loads(succeed("attention", translation_run, SOURCE, "--json"))
    assert report["kind"] == "self"
    assert report["keys"]["labels"] == [*SOURCE.split(), "</s>"]
    assert np.triu(np.array(report["weights"]), 1).any()


def test_layers_and_heads_can_be_chosen(succeed, gpt):
    report = json.loads(succeed("attention", gpt, "The owl", "--json", "--layer", 2, "--head", 1))
    np.testing.assert_allclose(report["mean"], report["weights"][1][0])
    assert "layer 2, head 1;" in succeed("attention", gpt, "The owl", "--layer", 2, "--head", 1)
    assert "layer 2, mean of 2 heads;" in succeed("attention", gpt, "The owl", "--layer", 2)


def test_the_terminal_shows_the_map_and_the_alignments(succeed, translation_run):
    lines = succeed("attention", translation_run, SOURCE, "--target", TARGET).splitlines()
    assert lines[:2] == [f"source  {SOURCE}", f"target  {TARGET}"]
    assert lines[-1].endswith(": 0-3 1-2 2-1 3-0")
    assert [line.split()[0] for line in lines[-7:-2]] == ["Fuchs", "drei", "여우", "eins", "</s>"]


def test_the_suffix_selects_the_format(succeed, translation_run, tmp_path):
    for suffix in ("txt", "json", "jsonl", "pharaoh"):
        assert succeed("attention", translation_run, SOURCE, "--target", TARGET, "-o", tmp_path / f"a.{suffix}") == ""
    assert (tmp_path / "a.pharaoh").read_text() == "0-3 1-2 2-1 3-0\n"
    assert json.loads((tmp_path / "a.json").read_text())["alignments"] == "0-3 1-2 2-1 3-0"
    assert (tmp_path / "a.txt").read_text() == succeed("attention", translation_run, SOURCE, "--target", TARGET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.jsonl", "a.pharaoh", "a.txt"]


def test_translate_writes_a_map_a_line(succeed, translation_run, tmp_path):
    known = pairs(5, seed=99)
    sources = [source for source, _ in known]
    (tmp_path / "test.en").write_text("\n".join([*sources[:2], "", *sources[2:]]) + "\n")
    command = "translate", translation_run, tmp_path / "test.en"
    plain = succeed(*command)
    assert succeed(*command, "--attention", tmp_path / "a.jsonl") == plain
    maps = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert ["\t".join(one["texts"]) for one in maps] == [
        "\t".join(pair) for pair in zip([*sources[:2], "", *sources[2:]], plain.splitlines(), strict=True)
    ]
    assert maps[2]["alignments"] == ""
    succeed(*command, "--attention", tmp_path / "a.pharaoh")
    assert (tmp_path / "a.pharaoh").read_text().split("\n")[:-1] == [one["alignments"] for one in maps]
    succeed(*command, "--attention", tmp_path / "a.html")
    page = Cells((tmp_path / "a.html").read_text())
    assert page.open == []
    assert len(page.titles) == sum(len(one["queries"]["labels"]) * len(one["keys"]["labels"]) for one in maps)


def test_a_prefix_is_part_of_the_queries(succeed, translation_run, tmp_path):
    (tmp_path / "test.en").write_text("sun one fox\n")
    flags = ["--prefix", "Fuchs", "--attention", tmp_path / "a.json"]
    (line,) = succeed("translate", translation_run, tmp_path / "test.en", *flags).splitlines()
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["queries"]["labels"] == [*line.split(), "</s>"]
    assert line.startswith("Fuchs")
    assert report["alignments"].split()[-1] == "2-0"


def test_a_page_needs_nothing_else_and_has_all_heads(succeed, gpt, tmp_path):
    succeed("attention", gpt, "The <b>owl</b> & 狐", "-o", tmp_path / "a.html")
    source = (tmp_path / "a.html").read_text()
    page = Cells(source)
    assert page.open == []
    assert not re.search(r"https?:|<script|<link|<b>", source)
    assert page.titles[0] == "<s> → <s>: 100.0%"
    assert page.titles[1:5] == [None] * 4
    assert len(page.titles) == 5 * 5
    assert len(page.pictures) == 3 * 2
    data = b64decode(page.pictures[0].partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = int.from_bytes(data[data.index(b"IDAT") - 4 : data.index(b"IDAT")])
    dots = zlib.decompress(data[data.index(b"IDAT") + 4 :][:size])
    assert len(dots) == 5 * (1 + 4 * 5)
    alpha = np.frombuffer(dots, dtype=np.uint8).reshape(5, 21)[:, 1:].reshape(5, 5, 4)[..., 3]
    assert (alpha == 255 * np.tri(5)).all()


def test_cells_of_a_page_have_their_percentage_and_the_ink_that_is_readable_on_it():
    weights = np.array([[0.0, 0.004, 0.006], [0.08, 0.5, 1.0]], dtype=np.float32)
    queries, keys = (Axis((), (), tuple(names), tuple(range(len(names)))) for names in ("ab", "xyz"))
    shown = AttentionMap("cross", queries, keys, weights[None, None])
    page = "".join(render_page([TextAttention(shown, ("a b", "x y z"))], AttentionConfig()))
    cells = re.findall(r'<td class="w(\d+)( l)?" title="(.) → (.): ([0-9.]+)%">([^<]+)</td>', page)
    assert [cell[2:] for cell in cells] == [
        ("a", "x", "0.0", "·"), ("a", "y", "0.4", "·"), ("a", "z", "0.6", "1"),
        ("b", "x", "8.0", "8"), ("b", "y", "50.0", "50"), ("b", "z", "100.0", "100"),
    ]  # fmt: skip
    colours = dict(re.findall(r"\.w(\d+) { background: #(\w+); }", page))
    assert len(colours) == 101
    for percent, light, *_ in cells:
        shade = tuple(bytes.fromhex(colours[percent]))
        assert shade == fraction_colour(int(percent) / 100)
        assert bool(light) == is_light(shade)


@pytest.mark.parametrize(("layer", "head"), [(None, None), (2, 1)])
def test_a_picture_has_the_chosen_map_and_small_ones_of_all_heads_unless_one_is_chosen(monkeypatch, layer, head):
    drawn: list[Any] = []
    monkeypatch.setattr(plot, "save_figure", lambda pyplot, figure, path: drawn.append(figure))
    weights = np.tril(np.random.default_rng(1).random((2, 3, 2, 2)).astype(np.float32))
    axis = Axis((), (), ("a$", "b" * 30), (0, 1))
    shown = AttentionMap("self", axis, axis, weights, is_causal=True)
    plot.save_plot(Path("a.png"), TextAttention(shown, ("a b",)), AttentionConfig(layer=layer, head=head))
    (figure,) = drawn
    large, *small = figure.subfigs or [figure]
    axes = large.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan),
                               np.where(np.tri(2) > 0, shown.mean(layer=layer, head=head), np.nan))  # fmt: skip
    assert [label.get_text() for label in axes.get_xticklabels()] == [r"a\$", "b" * 23 + "…"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [r"a\$", "b" * 23 + "…"]
    assert [label.get_text() for label in large.axes[1].get_yticklabels()] == ["0%", "1%", "10%", "25%", "50%", "100%"]
    assert " ".join(large.get_suptitle().split()) == describe(shown, AttentionConfig(layer=layer, head=head))
    assert axes.images[0].get_clim() == (0, 1)
    assert [each.get_suptitle() for each in small] == ["layer.head"] * (layer is None)
    names = [axes.get_title() for each in small for axes in each.axes]
    assert names == ([] if layer else ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"])
    for number, axes in enumerate(axes for each in small for axes in each.axes):
        expected = np.where(np.tri(2) > 0, weights[number // 3, number % 3], np.nan)
        np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan), expected)
        assert (len(axes.get_xticks()), len(axes.get_yticks())) == (0, 0)


@pytest.mark.medium
def test_pictures_are_drawn(succeed, gpt, translation_run, tmp_path):
    pytest.importorskip("matplotlib")
    succeed("attention", gpt, "The owl costs $5 and $6", "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    succeed(
        "attention", translation_run, SOURCE, "--target", TARGET, "--layer", 1, "--head", 1, "-o", tmp_path / "a.svg"
    )
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_pictures_say_what_they_need(capsys, gpt, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["attention", str(gpt), "The owl", "-o", str(tmp_path / "a.png")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_picture_that_does_not_fit_is_not_there(capsys, gpt, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    with full_disk(after=100):
        assert run(["attention", str(gpt), "The owl", "-o", str(picture)]) == 1
    assert capsys.readouterr().err == f"lm: {picture.resolve()}: File too large\n"
    assert list(tmp_path.iterdir()) == []
