"""Runs become folders that CTranslate2 loads, with the tokenizer beside them."""

import json

import numpy as np
import pytest
import tokenizers

from lm.api import export
from lm.checkpoint import load_model
from lm.config.inference import TranslationConfig
from lm.decoding.translation import TranslationModel, Translator
from lm.interop.hugging_face import import_model
from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.interop.hugging_face.test_marian import HARDWARE, theirs_saved

ctranslate2 = pytest.importorskip("ctranslate2")
SENTENCES = ["The cat sat on the mat.", "a dog", "The bone was there and more", "cat"]
TRANSLATION = {"n_encoder_layers": 1, "norm": "layernorm", "activation": "gelu"}


@pytest.fixture(autouse=True)
def translations_of_20_tokens(monkeypatch):
    monkeypatch.setattr("lm.decoding.translation._MAX_LENGTH_RATIO", 0)
    monkeypatch.setattr("lm.decoding.translation._MAX_LENGTH_EXTRA", 20)


def test_sources_end_by_themselves(tmp_path):
    export(make_run(tmp_path / "run", **TRANSLATION), tmp_path / "out", "ctranslate2")
    tokenizer = make_tokenizer("bpe")
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    source = [tokenizer.token(index) for index in tokenizer.encode("The owl")]
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["add_source_eos"] is True
    assert settings["decoder_start_token"] == settings["eos_token"] == "<|endoftext|>"
    once, twice = translator.score_batch([source, [*source, "<|endoftext|>"]], [source, source])
    assert once.log_probs != twice.log_probs


@pytest.mark.parametrize("beam", [1, 5])
def test_an_imported_marian_translates_alike(beam, tmp_path):
    theirs_saved(tmp_path, 9.0 if beam == 1 else 0.0)  # the best token everywhere, unless it is banned
    import_model(tmp_path / "theirs", tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    model = TranslationModel.from_loaded(load_model(tmp_path / "run", HARDWARE))
    limits = TranslationConfig(beam=beam)
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    reader = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    sources = [reader.encode(line, add_special_tokens=False).tokens for line in SENTENCES]
    results = translator.translate_batch(sources, beam_size=beam, min_decoding_length=0, max_decoding_length=20)
    end = model.tokenizer.end_of_text
    for ours, other in zip(Translator(model, limits).translate(SENTENCES), results, strict=True):
        tokens = [model.tokenizer.token(index) for index in ours.translations[0].tokens if index != end]
        assert tokens == other.hypotheses[0]


@pytest.mark.parametrize("number_type", ["bfloat16", "int8"])
def test_matrices_are_of_the_type_that_is_asked_for(number_type, tmp_path):
    run = make_run(tmp_path / "run", d_model=64)
    for name in ("float32", number_type):
        export(run, tmp_path / name, "ctranslate2", type=name)
    tokens = [["<|endoftext|>", "T", "h", "e"]]
    exact, other = (
        ctranslate2.Generator(str(tmp_path / name), compute_type="float32", intra_threads=1).forward_batch(tokens)
        for name in ("float32", number_type)
    )
    difference = np.abs(np.array(exact) - np.array(other)).max()
    assert 0 < difference < 0.1 * np.abs(np.array(exact)).max()
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float32", number_type)]
    assert sizes[1] < 0.6 * sizes[0]
