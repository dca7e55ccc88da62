"""Exported models give what ours give: translations, scores of given ones, and logits of texts."""

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.decoding.translation import TranslationModel
from lm.errors import UsageError
from lm.interop.ctranslate2 import build_specification, check_supported
from lm.model import EncoderDecoder, build_model
from tests.cli.small_runs import make_tokenizer
from tests.cli.toy_translation import pairs
from tests.lm.decoding.encoder_decoders import forced
from tests.lm.model.hugging_face import randomise

SHAPES = {
    "paper": {"norm_position": "post", "activation": "relu", "bias": True, "scale_embeddings": True},
    "pre-norm": {"activation": "gelu", "bias": True, "scale_embeddings": True},
    "half sinusoids, no bias": {"positions": "sinusoidal-half", "activation": "gelu-tanh", "n_layers": 1},
    "learned, two vocabularies": {"positions": "learned", "activation": "relu", "source_vocab_size": 300},
    "rotary": {"positions": "rotary", "rope_base": 500.0, "activation": "gelu", "bias": True},
    "rotary, gated": {"positions": "rotary", "norm": "rmsnorm", "activation": "swiglu", "scale_embeddings": True},
    "gated": {"norm": "rmsnorm", "activation": "swiglu", "tie_embeddings": False},
    "marian": {"norm_position": "post", "activation": "silu", "bias": True, "output_bias": True},
}


def make_model(**fields) -> TranslationModel:
    tokenizer = make_tokenizer("bpe")
    config = {
        "vocab_size": tokenizer.vocab_size, "context_length": 64, "d_model": 32, "n_layers": 2, "n_encoder_layers": 3,
        "n_heads": 4, "positions": "sinusoidal", "norm": "layernorm", "init_std": 0.3, **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(**config), seed=2).eval().requires_grad_(False)
    assert isinstance(model, EncoderDecoder)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # no bias is zero, no norm's weight one
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return TranslationModel(model, tokenizer, tokenizer)


def exported(model: TranslationModel, folder):
    ctranslate2 = pytest.importorskip("ctranslate2")
    built = model.model
    build_specification(built.config, built.state_dict(), model.tokenizer, model.source_tokenizer).save(str(folder))
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


def spelled(model: TranslationModel, text: str) -> list[str]:
    return [model.source_tokenizer.token(index) for index in model.source_tokenizer.encode(text)]


@pytest.mark.parametrize("shape", SHAPES)
def test_both_score_translations_alike(shape, tmp_path):
    model = make_model(**SHAPES[shape])
    theirs, tokenizer = exported(model, tmp_path), model.tokenizer
    sources, targets = zip(*pairs(8, seed=1), strict=True)
    scored = theirs.score_batch(
        [spelled(model, source) for source in sources], [spelled(model, target) for target in targets]
    )
    for source, target, score in zip(sources, targets, scored, strict=True):
        ids = [*model.source_tokenizer.encode(source), tokenizer.end_of_text]
        tokens = [*tokenizer.encode(target), tokenizer.end_of_text]
        expected = forced(model.model, ids, tokens, start=tokenizer.start_of_text)
        assert score.log_probs == pytest.approx(expected, abs=2e-2, rel=2e-3)  # its exponentials are approximations


DECODERS = {
    "gpt2": {"norm": "layernorm", "positions": "learned", "activation": "gelu-tanh", "bias": True},
    "gpt1": {"norm": "layernorm", "positions": "sinusoidal", "activation": "gelu", "norm_position": "post"},
    "pythia": {
        "norm": "layernorm",
        "activation": "gelu",
        "rotary_fraction": 0.5,
        "parallel_residual": True,
        "bias": True,
    },
    "llama": {"n_kv_heads": 2, "tie_embeddings": False, "rope_base": 500.0, "norm_eps": 1e-3},
    "linear": {"rope_scaling": "linear", "rope_factor": 3.0},
    "qwen2": {"n_kv_heads": 1, "attention_bias": "inputs"},
    "qwen3": {"qk_norm": True, "n_kv_heads": 2, "d_head": 12},
    "scaled": {"scale_embeddings": True, "positions": "sinusoidal-half", "activation": "relu", "qk_norm": True},
    "with a bias of the output": {"activation": "silu", "output_bias": True},
}


@pytest.mark.parametrize("shape", DECODERS)
def test_both_see_the_same_in_a_text(shape, tmp_path):
    """Of a model with IDs that the tokenizer does not have."""
    ctranslate2, tokenizer = pytest.importorskip("ctranslate2"), make_tokenizer("bpe")
    config = {"vocab_size": tokenizer.vocab_size + 5, "context_length": 64, "d_model": 32, "n_layers": 2, "n_heads": 4}
    model = build_model(ModelConfig(**{**config, **DECODERS[shape]})).eval().requires_grad_(False)
    randomise(model)
    build_specification(model.config, model.state_dict(), tokenizer, tokenizer).save(str(tmp_path))
    theirs = ctranslate2.Generator(str(tmp_path), compute_type="float32", intra_threads=1)
    ids = torch.randint(0, tokenizer.vocab_size, (3, 24), generator=torch.Generator().manual_seed(1))
    logits = theirs.forward_batch([[tokenizer.token(index) for index in row] for row in ids.tolist()])
    expected = model(ids)  # whose exponentials are exact
    np.testing.assert_allclose(np.array(logits), expected, atol=5e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"positions": "alibi"}, "positions 'alibi'"), ({"softcap": 30.0}, "softcap 30.0"),
     ({"rope_scaling": "yarn"}, "rope_scaling 'yarn'"), ({"parallel_residual": True}, "parallel_residual True"),
     ({"objective": "masked"}, "objective 'masked'"), ({"architecture": "gru"}, "architecture 'gru'"),
     ({"n_encoder_layers": 1, "qk_norm": True}, "qk_norm True"),
     ({"n_encoder_layers": 1, "attention_bias": "inputs"}, "attention_bias")],
)  # fmt: skip
def test_what_it_cannot_run_is_named(fields, named):
    with pytest.raises(UsageError, match=f"CTranslate2 runs no .* with {named}"):
        check_supported(ModelConfig(**fields))
