"""Each scheme of positions and attention from the command line, in every kind of model: trained, resumed, used."""

import json
from pathlib import Path

import pytest

import corpora
from cli.main import run
from tests.system.conftest import SMALL, assert_resumes_exactly

FIXED = ["--threads", "1", "--device", "cpu", "--dtype", "float32", "--seed", "3", "--dropout", "0.1",
         "--n-layers", "2", "--set", "training.schedule=constant", "--evaluate-every", "3", "--steps", "6"]  # fmt: skip
TRANSLATION = ["--preset", "translation-tiny", "--d-model", 32, "--n-heads", 2, "--vocab-size", 300,
               "--set", "training.bleu_sentences=2"]  # fmt: skip
SCHEMES = {
    "relative": ["--positions", "relative"],
    "t5": ["--positions", "t5"],
    "alibi": ["--positions", "alibi"],
    "window": ["--set", "model.attention=window", "--set", "model.attention_window=4"],
    "bigbird": [
        "--set",
        "model.attention=bigbird",
        "--set",
        "model.attention_block=2",
        "--set",
        "model.global_blocks=1",
        "--set",
        "model.random_blocks=1",
    ],
    "compressed": [
        "--set",
        "model.attention=compressed",
        "--set",
        "model.attention_block=4",
        "--set",
        "model.attention_stride=2",
    ],
    "linformer": ["--set", "model.attention=linformer", "--set", "model.attention_rank=6"],
}


def each(*tested: str, slow: tuple[str, ...]):
    """Schemes to test, and those that are tested with -m slow, since their layers have tests of their own."""
    return pytest.mark.parametrize("scheme", [*tested, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)])


@pytest.fixture
def train(succeed, tmp_path):
    """Train a run; resumed halfway it has the same log, weights and state of the optimizer."""

    def train(*arguments: object) -> Path:
        succeed("train", *arguments, *FIXED, "-o", tmp_path / "run")
        assert_resumes_exactly(tmp_path / "run", tmp_path / "resumed", step=3)
        return tmp_path / "run"

    return train


@pytest.fixture
def pairs(tmp_path) -> list[object]:
    """Flags that name twelve sentences and their translations."""
    for suffix in ("en", "de"):
        lines = corpora.path(f"parallel/heldout.{suffix}").read_text().splitlines()[:12]
        (tmp_path / suffix).write_text("\n".join(lines) + "\n")
    (tmp_path / "three").write_text("A dog runs.\nTwo men are here.\n\n")
    return ["--source", tmp_path / "en", "--target", tmp_path / "de"]


@pytest.mark.medium
@each("bigbird", slow=("relative", "t5", "alibi", "window", "compressed"))
def test_a_language_model(scheme, place, train, succeed):
    trained = train(place / "text.txt", *SMALL, *SCHEMES[scheme], "--optimizer", "muon")
    for decoder in (["--temperature", "0"], ["--beam", 3]):  # past the context too
        command = ["generate", trained, "one", *decoder, "--max-tokens", 20, "--json"]
        assert 0 < len(json.loads(succeed(*command))["tokens"]) <= 20
    assert json.loads(succeed("attention", trained, "one two", "--json"))["kind"] == "self"
    assert "perplexity" in succeed("perplexity", trained, place / "text.txt")
    described = json.loads(succeed("info", trained, "--json"))
    if "--positions" in SCHEMES[scheme]:
        parameters = {"relative": 2 * 2 * 32 * 17, "t5": 32 * 2, "alibi": 0}[scheme]
        assert described["parameters"].get("positions", 0) == parameters
    else:
        assert f"attention {scheme}, " in succeed("info", trained)


@pytest.mark.medium
@each("relative", slow=("t5", "alibi", "window", "bigbird", "compressed", "linformer"))
def test_an_encoder_decoder(scheme, pairs, train, succeed, capsys, tmp_path):
    trained = train(*pairs, *TRANSLATION, "--set", "model.n_encoder_layers=2", *SCHEMES[scheme])
    crossed = succeed("attention", trained, "A dog runs.", "--target", "Ein Hund.", "--json")
    assert json.loads(crossed)["kind"] == "cross"
    assert succeed("translate", trained, tmp_path / "three", "--beam", 4).count("\n") == 3
    assert run(["attention", str(trained), "A dog runs.", "--json"]) == (2 if scheme == "linformer" else 0)
    output = capsys.readouterr()
    if scheme == "linformer":
        assert "linformer attends to combinations of all positions: there is no attention map" in output.err
    else:
        assert json.loads(output.out)["kind"] == "self"


@each("window", slow=("bigbird", "compressed"))
def test_a_translation_model_without_an_encoder(scheme, pairs, train, succeed, tmp_path):
    trained = train(*pairs, *TRANSLATION, "--set", "model.decoder_only=true", *SCHEMES[scheme])
    assert succeed("translate", trained, tmp_path / "three", "--beam", 4).count("\n") == 3


@each("linformer", slow=("window", "bigbird", "compressed"))
def test_a_masked_model(scheme, place, train, succeed, tmp_path):
    trained = train(place / "text.txt", *SMALL, *SCHEMES[scheme], "--objective", "masked")
    assert succeed("fill", trained, "one [MASK] three")
    (tmp_path / "short.txt").write_text((place / "text.txt").read_text()[:300])
    assert "perplexity" in succeed("perplexity", trained, tmp_path / "short.txt")
