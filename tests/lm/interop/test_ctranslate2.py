"""Exported models give what ours give: translations, and scores of given ones."""

from __future__ import annotations

import pytest
import torch

from lm.config.decoding import TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.interop.ctranslate2 import export
from lm.model.transformer import EncoderDecoder, build_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.copying import copier, lines
from tests.lm.decoding.encoder_decoders import forced

SHAPES = {
    "paper": {"norm_position": "post", "activation": "relu", "bias": True, "scale_embeddings": True},
    "pre-norm": {"activation": "gelu", "bias": True, "scale_embeddings": True},
    "half sinusoids, no bias": {"positions": "sinusoidal-half", "activation": "gelu-tanh", "n_layers": 1},
    "learned, two vocabularies": {"positions": "learned", "activation": "relu", "source_vocab_size": 300},
    "rotary": {"positions": "rotary", "rope_base": 500.0, "activation": "gelu", "bias": True},
    "rotary, gated": {"positions": "rotary", "norm": "rmsnorm", "activation": "swiglu", "scale_embeddings": True},
    "gated": {"norm": "rmsnorm", "activation": "swiglu", "tie_embeddings": False},
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
    own = None if model.model.source_embedding is None else model.source_tokenizer
    export(model.model, folder, tokenizer=model.tokenizer, source_tokenizer=own)
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


def spelled(model: TranslationModel, text: str) -> list[str]:
    ids = [*model.source_tokenizer.encode(text), model.source_tokenizer.end_of_text]
    return [model.source_tokenizer.token(index) for index in ids]


@pytest.mark.parametrize("shape", SHAPES)
def test_both_score_translations_alike(shape, tmp_path):
    model = make_model(**SHAPES[shape])
    theirs, tokenizer = exported(model, tmp_path), model.tokenizer
    sources, targets = lines(8, seed=1), lines(8, seed=2)
    scored = theirs.score_batch(
        [spelled(model, source) for source in sources], [spelled(model, target)[:-1] for target in targets]
    )
    for source, target, score in zip(sources, targets, scored, strict=True):
        ids = [*model.source_tokenizer.encode(source), tokenizer.end_of_text]
        tokens = [*tokenizer.encode(target), tokenizer.end_of_text]
        expected = forced(model.model, ids, tokens, start=tokenizer.start_of_text)
        assert score.log_probs == pytest.approx(expected, abs=2e-2, rel=2e-3)  # its exponentials are approximations


@pytest.mark.parametrize("beam", [1, 5])
def test_both_translate_alike(beam, tmp_path):
    model, sources = copier(), lines(100, seed=21)
    theirs = exported(model, tmp_path).translate_batch(
        [spelled(model, source) for source in sources], beam_size=beam, return_scores=True
    )
    ours = list(Translator([model], TranslationConfig(beam=beam)).translate(sources))
    equal = 0
    for result, other in zip(ours, theirs, strict=True):
        best = result.translations[0]
        tokens = [model.tokenizer.token(token) for token in best.tokens if token != model.tokenizer.end_of_text]
        equal += tokens == other.hypotheses[0]
        if tokens == other.hypotheses[0]:
            assert best.score == pytest.approx(other.scores[0], abs=1e-3)
    assert equal >= 99


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("beam", [1, 4])
def test_both_translate_alike_with_random_weights(beam, positions, tmp_path):
    model, sources, longest = make_model(positions=positions, rope_base=500.0), lines(40, seed=3), 12
    theirs = exported(model, tmp_path).translate_batch(
        [spelled(model, source) for source in sources], beam_size=beam, return_scores=True, max_decoding_length=longest,
        min_decoding_length=0,  # else no first token is the end, and the others' probabilities are larger for it
    )  # fmt: skip
    config = TranslationConfig(beam=beam, max_length_ratio=0, max_length_extra=longest)
    for result, other in zip(Translator([model], config).translate(sources), theirs, strict=True):
        best = result.translations[0]
        assert best.score == pytest.approx(other.scores[0], abs=1e-4)
        tokens = [model.tokenizer.token(token) for token in best.tokens if token != model.tokenizer.end_of_text]
        assert tokens == other.hypotheses[0]


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"positions": "none"}, "positions 'none'"), ({"positions": "alibi"}, "positions 'alibi'"),
     ({"positions": "relative"}, "positions 'relative'"), ({"positions": "t5"}, "positions 't5'"),
     ({"activation": "relu2"}, "activation 'relu2'"),
     ({"qk_norm": True}, "qk_norm True"), ({"n_kv_heads": 2}, "n_kv_heads 2"), ({"softcap": 30.0}, "softcap 30.0"),
     ({"value_residual": True}, "value_residual True"), ({"embedding_shortcut": True}, "embedding_shortcut True"),
     ({"attention": "window"}, "attention 'window'"),
     ({"experts": 2}, "experts 2"), ({"syntax": "depth"}, "syntax 'depth'"), ({"d_head": 4}, "d_head 4"),
     ({"attention_bias": "inputs"}, "attention_bias"),
     ({"positions": "rotary", "rotary_share": 0.5}, "rotary_share 0.5"),
     ({"positions": "rotary", "rope_scaling": "linear"}, "rope_scaling 'linear'")],
)  # fmt: skip
def test_what_ctranslate2_cannot_run_is_named(fields, named, tmp_path):
    model = make_model(**fields)
    with pytest.raises(UsageError, match=named):
        export(model.model, tmp_path, tokenizer=model.tokenizer)
