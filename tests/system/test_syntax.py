"""Positions by syntax from the command line: learned from, resumed, and asked for wherever a source is read."""

import json
import random
import shutil
from pathlib import Path

import pytest

from cli.main import run
from tests.lm.text.random_trees import random_heads
from tests.system.conftest import assert_resumes_exactly, hashes

WORDS = ["one", "two", "three", "four", "five", "six"]
SHAPE = ["--preset", "translation-tiny", "--d-model", "32", "--n-layers", "1", "--set",
         "model.n_encoder_layers=1", "--n-heads",
         "2", "--vocab-size", "300", "--batch-tokens", "300", "--threads", "1", "--device", "cpu", "--dtype",
         "float32"]  # fmt: skip
LEARNING = ["--dropout", "0", "--learning-rate", "0.01", "--set", "training.warmup_steps=10",
            "--evaluate-every", "0", "--set", "training.best_by=loss"]  # fmt: skip


def write(folder: Path, name: str, count: int, *, seed: int) -> None:
    """Four words in any order, a tree of them, and for a translation the word at its root."""
    chance = random.Random(seed)
    rows = [(chance.sample(WORDS, 4), random_heads(4, chance)) for _ in range(count)]
    lines = {
        "en": [" ".join(words) for words, _ in rows],
        "de": [words[heads.index(0)].upper() for words, heads in rows],
        "heads": [" ".join(map(str, heads)) for _, heads in rows],
    }
    for suffix, text in lines.items():
        (folder / f"{name}.{suffix}").write_text("\n".join(text) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pairs that can be translated only by their trees."""
    folder = tmp_path_factory.mktemp("syntax")
    write(folder, "train", 500, seed=0)
    write(folder, "test", 40, seed=1)
    return folder


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(folder / "cache"))


@pytest.fixture(scope="module")
def parsed(folder) -> Path:
    """A run that has learned from trees to translate."""
    return train(folder, "both", steps=100)


@pytest.fixture(scope="module")
def plain(folder) -> Path:
    """A run that has seen few of the pairs, without their trees."""
    return train(folder, "none", steps=2)


def train(folder: Path, syntax: str, *, steps: int) -> Path:
    trees = ["--dependency-heads", str(folder / "train.heads")] if syntax != "none" else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        command = ["train", *files(folder, "train"), *trees, "--set", f"model.syntax={syntax}", *SHAPE, *LEARNING]
        assert run([*command, "--steps", str(steps), "-o", str(folder / syntax)]) == 0
    return folder / syntax


def files(folder: Path, name: str) -> list[str]:
    return ["--source", str(folder / f"{name}.en"), "--target", str(folder / f"{name}.de")]


def right(folder: Path, translations: str) -> int:
    """How many translations of the test file are what they should be."""
    expected = (folder / "test.de").read_text().splitlines()
    return sum(one == other for one, other in zip(translations.splitlines(), expected, strict=True))


@pytest.mark.parametrize(
    "syntax", [pytest.param("depth", marks=pytest.mark.slow), pytest.param("distance", marks=pytest.mark.slow), "both"]
)
def test_what_only_a_tree_tells_is_learned_from_it(folder, syntax, parsed, succeed):
    learned = parsed if syntax == "both" else train(folder, syntax, steps=100)
    for beam in (1, 4):
        translated = succeed("translate", learned, folder / "test.en", "--dependency-heads", folder / "test.heads",
                             "--beam", beam)  # fmt: skip
        assert right(folder, translated) >= 38
    chains = folder / "chains.heads"
    chains.write_text("0 1 2 3\n" * 40)  # the first word is the root of each
    translated = succeed("translate", learned, folder / "test.en", "--dependency-heads", chains)
    firsts = [line.split()[0].upper() for line in (folder / "test.en").read_text().splitlines()]
    assert sum(one == other for one, other in zip(translated.splitlines(), firsts, strict=True)) >= 30


def test_every_command_that_reads_a_source_reads_its_tree(folder, parsed, plain, succeed):
    pairs, trees = files(folder, "test"), ["--dependency-heads", folder / "test.heads"]
    scores = json.loads(succeed("evaluate", parsed, *pairs, *trees, "--json"))["scores"]
    assert scores[1]["metric"] == "chrF2"
    assert scores[1]["value"] >= 90
    compared = succeed("evaluate", parsed, *pairs, *trees, "--versus", folder / "test.de", "--json")
    assert json.loads(compared)["lines"] == 40
    ahead = succeed("evaluate", plain, *pairs, *trees, "--versus", parsed, "--json")  # one of them reads trees
    first, second = (row["value"] for row in json.loads(ahead)["scores"] if row["metric"] == "chrF2")
    assert first < second
    figures = json.loads(succeed("perplexity", parsed, *pairs, *trees, "--json"))
    assert figures["total"]["nats_per_token"] < 0.1
    aligned = folder / "test.pharaoh"
    succeed("translate", parsed, folder / "test.en", *trees, "--attention", aligned)
    assert len(aligned.read_text().splitlines()) == 40
    for target in ([], ["--target", "TWO"]):
        assert succeed("attention", parsed, "one two six", "--dependency-heads", "2 0 2", *target)
    assert "syntax both" in succeed("info", parsed)


def test_each_file_of_lines_needs_its_file_of_trees(folder, parsed, capsys):
    trees = [each for name in ("test", "train") for each in ("--dependency-heads", str(folder / f"{name}.heads"))]
    assert run(["translate", str(parsed), str(folder / "test.en"), *trees]) == 2
    assert capsys.readouterr().err.endswith("lm: 1 files of sources and 2 of heads\n")


def test_resuming_equals_never_having_stopped(folder, tmp_path, succeed):
    flags = [*SHAPE, "--dropout", "0.2", "--set", "parallel.bpe_dropout=0.3", "--set",
             "training.schedule=constant", "--set", "training.checkpoint_every=3",
             "--evaluate-every", "3", "--set", "training.bleu_sentences=3", "--set",
             "model.max_distance=2"]  # fmt: skip
    held_out = ["--validation-source", folder / "test.en", "--validation-target", folder / "test.de",
                "--validation-dependency-heads", folder / "test.heads"]  # fmt: skip
    trees = ["--dependency-heads", folder / "train.heads", "--set", "model.syntax=both"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    succeed("train", *files(folder, "train"), *trees, *held_out, "-o", whole, "--steps", 6, *flags)
    assert_resumes_exactly(whole, resumed, step=3)
    shutil.rmtree(folder / "cache" / "tokens")
    shutil.rmtree(resumed)
    again = ["train", *files(folder, "train"), *trees[:2], *held_out]
    succeed(*again, "--resume", whole / "checkpoints" / "step-3", "-o", resumed, "--steps", 6)
    assert hashes(resumed) == hashes(whole)
