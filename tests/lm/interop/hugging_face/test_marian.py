"""Encoder-decoders of 2017 are MarianMT in transformers, out and in, and translate alike."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from lm.api import export
from lm.checkpoint import load_model
from lm.config.inference import TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.translation import TranslationModel, Translator
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.hugging_face import import_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import loaded_export, random_run
from tests.lm.tokenizers_elsewhere import unigram_like
from tests.slow_cases import slow_after
from tests.tolerances import approx, assert_close

HARDWARE = Hardware("cpu", "float32", 1)
LENGTHS = torch.tensor([14, 9, 3])
SENTENCES = ["The owl saw the fox.", "Über den Bäumen sang the owl", "the mill", "fox fox fox ran"]


@pytest.fixture(autouse=True)
def translations_of_20_tokens(monkeypatch):
    monkeypatch.setattr("lm.decoding.translation._MAX_LENGTH_RATIO", 0)
    monkeypatch.setattr("lm.decoding.translation._MAX_LENGTH_EXTRA", 20)


def random_config(seed: int) -> ModelConfig:
    draw = random.Random(seed)
    heads = draw.choice([2, 4])
    return ModelConfig(
        vocab_size=make_tokenizer("bpe").vocab_size, context_length=32, n_layers=draw.choice([1, 2]),
        n_encoder_layers=draw.choice([1, 2, 3]), n_heads=heads, d_model=heads * draw.choice([8, 16]),
        d_ff=draw.choice([None, 40]), positions="sinusoidal-half", norm="layernorm", norm_position="post",
        activation=draw.choice(["relu", "silu", "gelu"]), bias=draw.choice([True, False]),
        attention_bias=draw.choice([None, "all", "inputs"]), scale_embeddings=draw.choice([True, False]),
        output_bias=draw.choice([True, False]),
    )  # fmt: skip


def ids(rows: int, length: int, *, most: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, most, (rows, length), generator=torch.Generator().manual_seed(seed))


def compare(ours, theirs):
    """Sources of different lengths, padded."""
    most = ours.config.vocab_size
    source, target = ids(3, 14, most=most), ids(3, 11, most=most, seed=1)
    real = torch.arange(14) < LENGTHS[:, None]
    with torch.no_grad():
        found = ours(source, target, lengths=LENGTHS)
        expected = theirs(source, attention_mask=real.long(), decoder_input_ids=target).logits
    assert_close(found, expected, model=ours)


def exported(tmp_path, config):
    run = random_run(tmp_path / "run", config, tokenizer=make_tokenizer("bpe"))
    theirs = loaded_export(run, tmp_path / "out", AutoModelForSeq2SeqLM)
    assert isinstance(theirs, MarianMTModel)
    return load_model(run, HARDWARE), theirs


@pytest.mark.parametrize("seed", slow_after(3, range(16)))
def test_logits_are_those_of_the_run(seed, tmp_path):
    loaded, theirs = exported(tmp_path, random_config(seed))
    compare(loaded.model, theirs)


def compare_translations(loaded, theirs, folder, beam):
    """Of each sentence alone: the tokens, and the score of the search."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = TranslationModel(loaded.model, loaded.tokenizer, loaded.source_tokenizer or loaded.tokenizer)
    translator = Translator(own, TranslationConfig(beam=beam))
    for found in translator.translate(SENTENCES):
        source = tokenizer(found.source, return_tensors="pt")
        best = theirs.generate(
            **source, num_beams=beam, max_new_tokens=20, return_dict_in_generate=True, output_scores=True
        )
        expected = best.sequences[0, 1:].tolist()
        assert list(found.translations[0].tokens) == expected
        if beam > 1:
            assert found.translations[0].score == approx(float(best.sequences_scores[0]), model=theirs)


@pytest.mark.parametrize("beam", [1, 5])
def test_translations_are_those_of_the_run(beam, tmp_path):
    loaded, theirs = exported(tmp_path, random_config(beam))
    compare_translations(loaded, theirs, tmp_path / "out", beam)


def theirs_saved(tmp_path, start_bias=0.0):
    """A Marian that transformers saved with random weights, which pads and starts with its last token."""
    backend = unigram_like()
    size = backend.get_vocab_size() + 1
    backend.add_special_tokens(["<pad>"])
    end = backend.token_to_id("</s>")
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=size, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, activation_function="swish",
        max_position_embeddings=48, scale_embedding=True, pad_token_id=size - 1, decoder_start_token_id=size - 1,
        eos_token_id=end, init_std=0.4, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = MarianMTModel(config).eval()
    theirs.final_logits_bias.normal_()
    theirs.final_logits_bias[:, -1] += start_bias
    theirs.generation_config.update(
        num_beams=5, early_stopping=True, bad_words_ids=[[size - 1]], max_length=None, forced_eos_token_id=None
    )
    theirs.save_pretrained(tmp_path / "theirs")
    backend.save(str(tmp_path / "theirs" / "tokenizer.json"))
    return theirs


@pytest.mark.parametrize("beam", [1, 5])
def test_imported_models_translate_alike(beam, tmp_path):
    """They start with what they pad with, and never write it."""
    theirs = theirs_saved(tmp_path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    loaded = load_model(tmp_path / "run", HARDWARE)
    compare(loaded.model, theirs)
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    compare_translations(loaded, theirs, tmp_path / "theirs", beam)


def test_imported_models_are_exported_unchanged(tmp_path):
    theirs_saved(tmp_path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)
    again = json.loads((tmp_path / "out" / "config.json").read_text())
    was = json.loads((tmp_path / "theirs" / "config.json").read_text())
    for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id", "vocab_size", "scale_embedding"):
        assert again[name] == was[name]


@pytest.mark.parametrize("name", ["model.encoder.embed_tokens.weight", "lm_head.weight"])
def test_copies_of_the_embedding_are_verified(name, tmp_path):
    exported(tmp_path, random_config(0))
    path = tmp_path / "out" / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, name: weights["model.shared.weight"].clone()}, path)
    import_model(tmp_path / "out", tmp_path / "again")
    save_file({**weights, name: weights["model.shared.weight"] + 1}, path)
    with pytest.raises(InputError, match="model.shared.weight is one tensor"):
        import_model(tmp_path / "out", tmp_path / "refused")


def test_stored_positions_are_verified(tmp_path):
    """Those of transformers, and any others, which transformers would use."""
    _, theirs = exported(tmp_path, random_config(0))
    path, name = tmp_path / "out" / "model.safetensors", "model.encoder.embed_positions.weight"
    weights, positions = load_file(path), theirs.model.encoder.embed_positions.weight.detach()
    save_file({**weights, name: positions.clone()}, path)
    import_model(tmp_path / "out", tmp_path / "again")
    save_file({**weights, name: positions.flip(0)}, path)
    with pytest.raises(InputError, match=f"{name} is not sinusoidal"):
        import_model(tmp_path / "out", tmp_path / "refused")
