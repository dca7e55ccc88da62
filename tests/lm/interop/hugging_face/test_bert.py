"""Masked models and classifiers are BERTs in transformers, out and in."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    pipeline,
)

from lm.api import export
from lm.checkpoint import load_model
from lm.config.model import ModelConfig
from lm.decoding.classifier import fill_masks
from lm.hardware import Hardware
from lm.interop.hugging_face import import_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import VOCABULARY, ids, loaded_export, random_run
from tests.lm.model.hugging_face import randomise
from tests.lm.tokenizers_elsewhere import bert_like
from tests.slow_cases import slow_after
from tests.tolerances import approx, assert_close

HARDWARE = Hardware("cpu", "float32", 1)
LOADERS = {(): AutoModelForMaskedLM, ("no", "yes", "perhaps"): AutoModelForSequenceClassification}
LENGTHS = torch.tensor([24, 17, 5])


def random_config(seed: int, labels: tuple[str, ...] = ()) -> ModelConfig:
    draw = random.Random(seed)
    heads = draw.choice([2, 4])
    return ModelConfig(
        vocab_size=VOCABULARY, context_length=draw.choice([24, 32]), n_layers=draw.choice([1, 2, 3]), n_heads=heads,
        d_model=heads * draw.choice([8, 16]), d_ff=draw.choice([None, 40]), objective="masked", labels=labels,
        positions="learned", norm="layernorm", norm_position="post", norm_eps=draw.choice([1e-12, 1e-3]),
        activation=draw.choice(["gelu", "gelu-tanh", "relu", "relu2"]), bias=draw.choice([True, False]),
        attention_bias=draw.choice([None, "all", "none", "inputs"]), embedding_norm=True, output_transform=True,
        token_types=draw.choice([0, 1, 2]),
    )  # fmt: skip


def compare(ours, theirs):
    """Rows of different lengths, padded on the right."""
    tokens = ids(3, 24)
    real = torch.arange(24) < LENGTHS[:, None]
    with torch.no_grad():
        found, expected = ours(tokens, lengths=LENGTHS), theirs(tokens, attention_mask=real.long()).logits
    if ours.config.labels:
        assert_close(found[:, 0], expected, model=ours)
    else:
        assert_close(found[real], expected[real], model=ours)


def exported(tmp_path, config):
    run = random_run(tmp_path / "run", config, tokenizer=make_tokenizer("bpe", has_mask=True))
    theirs = loaded_export(run, tmp_path / "out", LOADERS[config.labels])
    assert theirs.config.model_type == "bert"
    return load_model(run, HARDWARE).model, theirs


@pytest.mark.parametrize("labels", LOADERS)
@pytest.mark.parametrize("seed", slow_after(2, range(16)))
def test_logits_are_those_of_the_run(seed, labels, tmp_path):
    compare(*exported(tmp_path, random_config(seed, labels)))


def theirs_saved(tmp_path, labels=()):
    """A BERT that transformers saved with random weights, its folder and a WordPiece tokenizer."""
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=32, **({"id2label": dict(enumerate(labels))} if labels else {}),
    )  # fmt: skip
    theirs = (BertForSequenceClassification if labels else BertForMaskedLM)(config).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    bert_like().save(str(tmp_path / "theirs" / "tokenizer.json"))
    return theirs


@pytest.mark.parametrize("labels", LOADERS)
def test_foreign_models_are_imported_and_exported_unchanged(labels, tmp_path):
    """Both types of tokens too, though all texts are of the first here."""
    theirs = theirs_saved(tmp_path, labels)
    import_model(tmp_path / "theirs", tmp_path / "run")
    compare(load_model(tmp_path / "run", HARDWARE).model, theirs)
    export(tmp_path / "run", tmp_path / "out")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "out"))
    ignored = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # the same as others
    assert before.keys() - ignored == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)


def test_old_names_and_heads_that_are_not_needed_are_no_hindrance(tmp_path):
    """As in the files of the models that were published first."""
    theirs = theirs_saved(tmp_path)
    path = tmp_path / "theirs" / "model.safetensors"
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
           for name, value in load_file(path).items()}  # fmt: skip
    pooler = {"bert.pooler.dense.weight": torch.zeros(24, 24), "bert.pooler.dense.bias": torch.zeros(24)}
    save_file({**old, **pooler, "cls.seq_relationship.weight": torch.zeros(2, 24)}, path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    compare(load_model(tmp_path / "run", HARDWARE).model, theirs)


def test_blanks_are_filled_as_in_transformers(tmp_path):
    tokenizer = make_tokenizer("bpe", has_mask=True)
    ours, theirs = exported(tmp_path, random_config(0).replace(vocab_size=tokenizer.vocab_size))
    text = "The owl saw the [MASK] by the mill."
    [filled] = fill_masks(ours, tokenizer, [text], k=3)
    found = pipeline("fill-mask", model=theirs, tokenizer=AutoTokenizer.from_pretrained(tmp_path / "out"))(
        text, top_k=3
    )
    assert [guess["token"] for guess in found] == [guess.id for guess in filled.blanks[0]]
    assert [guess["score"] for guess in found] == approx(
        [guess.probability for guess in filled.blanks[0]], model=theirs
    )
