"""What a model can do gives the same by the command line and by the Python API.

Each row of `FEATURES` is one thing that is done with a run, in both ways.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lm
from lm.evaluation.perplexity import PerplexityResult
from tests.cli.small_runs import TEXT, make_run

LINES = ["one two", "", "sun fox"]
LAST_PLACE = 1e-6
"""Weights of attention have six decimals in JSON."""


@dataclass(frozen=True)
class Files:
    """What commands read and write.

    Attributes:
        text: running text.
        lines: sources of translations.
        out: a folder for what is written, which is not there yet.
    """

    text: Path
    lines: Path
    out: Path


@dataclass(frozen=True)
class Feature:
    """One thing that is done with a run in two ways, whose results are comparable.

    Attributes:
        run: name of the run.
        command: arguments of the command, given the run and the files.
        printed: the result, given what the command printed.
        python: the result, given `lm.load(run)`.
    """

    run: str
    command: Callable[[Path, Files], list[object]]
    printed: Callable[[str, Files], Any]
    python: Callable[[lm.Model, Files], Any]


def summary(result: PerplexityResult) -> tuple[float | None, ...]:
    return result.tokens, result.nats, result.bits_per_byte


def exported(files: Files, way: str) -> Path:
    return files.out / way / "model.gguf"


FEATURES = {
    "generate": Feature(
        "gpt",
        lambda run, _: ["generate", run, "The owl", "--max-tokens", 12, "--seed", 3, "--top-k", 5, "--json"],
        lambda out, _: json.loads(out)["text"],
        lambda model, _: model.generate("The owl", max_tokens=12, seed=3, top_k=5),
    ),
    "perplexity": Feature(
        "gpt",
        lambda run, files: ["perplexity", run, files.text, "--stride", 8, "--json"],
        lambda out, _: tuple(json.loads(out)["total"][name] for name in ("tokens", "nats", "bits_per_byte")),
        lambda model, files: summary(model.perplexity(files.text, stride=8)),
    ),
    "attention": Feature(
        "gpt",
        lambda run, _: ["attention", run, "The owl saw", "--json"],
        lambda out, _: json.loads(out)["weights"],
        lambda model, _: model.attention("The owl saw").weights,
    ),
    "export": Feature(
        "gpt",
        lambda run, files: ["export", run, "--to", "gguf", "--type", "float16", "-o", exported(files, "command")],
        lambda _, files: exported(files, "command").read_bytes(),
        lambda model, files: (
            lm.export(model.loaded.folder, exported(files, "python"), to="gguf", type="float16"),
            exported(files, "python").read_bytes(),
        )[1],
    ),
    "translate": Feature(
        "translation",
        lambda run, files: ["translate", run, files.lines],
        lambda out, _: out.split("\n")[:-1],
        lambda model, _: [model.translate(line) for line in LINES],
    ),
    "fill": Feature(
        "masked",
        lambda run, _: ["fill", run, "The [MASK] saw the [MASK]", "--json"],
        lambda out, _: json.loads(out)["filled"],
        lambda model, _: model.fill("The [MASK] saw the [MASK]").filled,
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    make_run(folder / "gpt")
    make_run(folder / "masked", objective="masked")
    make_run(folder / "translation", n_encoder_layers=1)
    return folder


@pytest.fixture
def files(tmp_path) -> Iterator[Files]:
    made = Files(tmp_path / "text.txt", tmp_path / "lines.txt", tmp_path / "out")
    made.text.write_text(TEXT, encoding="utf-8")
    made.lines.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return made


@pytest.mark.parametrize("name", FEATURES)
def test_the_command_and_the_api_give_the_same(name, runs, files, succeed):
    feature = FEATURES[name]
    if name == "export":
        pytest.importorskip("gguf")
    run = runs / feature.run
    printed = feature.printed(succeed(*feature.command(run, files)), files)
    by_api = feature.python(lm.load(run), files)
    if name == "attention":
        np.testing.assert_allclose(by_api, printed, atol=LAST_PLACE, rtol=0)
    else:
        assert printed == by_api
