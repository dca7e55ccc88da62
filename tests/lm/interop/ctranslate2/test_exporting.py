"""Runs become folders that CTranslate2 loads, with the tokenizer beside them."""

import json
import sys

import numpy as np
import pytest
import tokenizers

from lm.checkpoint import load_model
from lm.config.decoding import TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import InputError, UsageError
from lm.interop.ctranslate2.exporting import build_specification, export_ctranslate2
from lm.interop.hugging_face.importing import import_model
from lm.model.transformer import build_model
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.full_disk import full_disk
from tests.lm.interop.hugging_face.test_marian import HARDWARE, theirs_saved
from tests.lm.tokenizers_elsewhere import gpt2_like

ctranslate2 = pytest.importorskip("ctranslate2")
SENTENCES = ["The cat sat on the mat.", "a dog", "The bone was there and more", "cat"]
TRANSLATION = {"n_encoder_layers": 1, "norm": "layernorm", "activation": "gelu"}


def test_texts_continue_as_the_documentation_says(tmp_path):
    assert export_ctranslate2(make_run(tmp_path / "run"), tmp_path / "out") == "Generator"
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    generator = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1)
    prompt = ["<|endoftext|>", *tokenizer.encode("The owl").tokens]
    result = generator.generate_batch([prompt], max_length=9, include_prompt_in_result=False)[0]
    assert 0 < len(result.sequences_ids[0]) <= 9
    assert isinstance(tokenizer.decode(result.sequences_ids[0]), str)


def test_sources_end_by_themselves(tmp_path):
    assert export_ctranslate2(make_run(tmp_path / "run", **TRANSLATION), tmp_path / "out") == "Translator"
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
    theirs_saved(tmp_path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    export_ctranslate2(tmp_path / "run", tmp_path / "out")
    model = TranslationModel.from_loaded(load_model(tmp_path / "run", HARDWARE))
    limits = TranslationConfig(beam=beam, max_length_ratio=0, max_length_extra=20)
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    reader = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    sources = [reader.encode(line, add_special_tokens=False).tokens for line in SENTENCES]
    results = translator.translate_batch(sources, beam_size=beam, min_decoding_length=0, max_decoding_length=20)
    end = model.tokenizer.end_of_text
    for ours, other in zip(Translator([model], limits).translate(SENTENCES), results, strict=True):
        tokens = [model.tokenizer.token(index) for index in ours.translations[0].tokens if index != end]
        assert tokens == other.hypotheses[0]


@pytest.mark.parametrize("number_type", ["float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16"])
def test_matrices_are_of_the_type_that_is_asked_for(number_type, tmp_path):
    run = make_run(tmp_path / "run", d_model=64)
    for name in ("float32", number_type):
        export_ctranslate2(run, tmp_path / name, number_type=name)
    tokens = [["<|endoftext|>", "T", "h", "e"]]
    exact, other = (
        ctranslate2.Generator(str(tmp_path / name), compute_type="float32", intra_threads=1).forward_batch(tokens)
        for name in ("float32", number_type)
    )
    difference = np.abs(np.array(exact) - np.array(other)).max()
    assert 0 < difference < 0.1 * np.abs(np.array(exact)).max()
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float32", number_type)]
    assert sizes[1] < 0.6 * sizes[0]


def test_what_is_refused_leaves_nothing_behind(tmp_path):
    run, out = make_run(tmp_path / "run", value_residual=True), tmp_path / "below" / "out"
    with pytest.raises(UsageError, match="CTranslate2 runs no decoder with value_residual True"):
        export_ctranslate2(run, out)
    other = make_run(tmp_path / "other")
    with full_disk(after=20_000), pytest.raises(OSError):  # noqa: PT011 (its own)
        export_ctranslate2(other, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_both_sides_end_by_the_same_token():
    config = ModelConfig(vocab_size=520, source_vocab_size=520, n_layers=1, d_model=32, **TRANSLATION)
    other = Tokenizer(tokenizers.Tokenizer.from_str(gpt2_like().to_str().replace("<|endoftext|>", "</s>")))
    with pytest.raises(UsageError, match=r"<\|endoftext\|> does not end a source"):
        build_specification(build_model(config), tokenizer=make_tokenizer("bpe"), source_tokenizer=other)


def test_without_the_package_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(InputError, match="needs ctranslate2: pip install ctranslate2"):
        export_ctranslate2(make_run(tmp_path / "run"), tmp_path / "out")
