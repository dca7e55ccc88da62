"""Masked models and classifiers are BERTs in transformers, out and in."""

import json
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

from lm.checkpoint import load_model, load_tokenizers, load_weights
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.decoding.mask_filling import MaskFiller
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.importing import import_model
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import VOCABULARY, ids, random_run
from tests.lm.interop.hugging_face.test_tokenizers import random_texts
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
    family = export_hugging_face(run, tmp_path / "out").family
    theirs, report = LOADERS[config.labels].from_pretrained(tmp_path / "out", output_loading_info=True)
    assert family.model_type == theirs.config.model_type == "bert"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return load_model(run, HARDWARE).model, theirs.eval()


@pytest.mark.parametrize("labels", LOADERS)
@pytest.mark.parametrize("seed", slow_after(4, range(16)))
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
    export_hugging_face(tmp_path / "run", tmp_path / "out")
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


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"is_decoder": True}, "is_decoder True"), ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ({"problem_type": "regression"}, "problem_type 'regression'"), ({"hidden_act": "tanh"}, "hidden_act 'tanh'"),
    ],
)  # fmt: skip
def test_what_we_are_not_is_named(changed, named, tmp_path):
    theirs_saved(tmp_path, ("a", "b"))
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(InputError, match=named):
        import_model(tmp_path / "theirs", tmp_path / "run")


def test_word_pieces_have_the_same_ids(tmp_path):
    theirs_saved(tmp_path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    export_hugging_face(tmp_path / "run", tmp_path / "out")
    ours, _ = load_tokenizers(find_checkpoint(tmp_path / "run"))
    theirs, texts = AutoTokenizer.from_pretrained(tmp_path / "out"), random_texts(200)
    assert theirs(texts, add_special_tokens=False).input_ids == [row.tolist() for row in ours.encode_batch(texts)]
    framed = [ours.start_of_text, *ours.encode("the cat"), ours.end_of_text]
    assert theirs("the cat").input_ids == framed


def test_blanks_are_filled_as_in_transformers(tmp_path):
    tokenizer = make_tokenizer("bpe", has_mask=True)
    ours, theirs = exported(tmp_path, random_config(0).replace(vocab_size=tokenizer.vocab_size))
    text = "The owl saw the [MASK] by the mill."
    [filled] = MaskFiller(ours, tokenizer).fill([text], k=3)
    found = pipeline("fill-mask", model=theirs, tokenizer=AutoTokenizer.from_pretrained(tmp_path / "out"))(
        text, top_k=3
    )
    assert [guess["token"] for guess in found] == [guess.id for guess in filled.blanks[0]]
    assert [guess["score"] for guess in found] == approx(
        [guess.probability for guess in filled.blanks[0]], model=theirs
    )


def test_weights_of_a_run_come_back(tmp_path):
    config = random_config(2)
    exported(tmp_path, config.replace(bias=True, attention_bias=None, token_types=2))
    import_model(tmp_path / "out", tmp_path / "again")
    before, after = (load_weights(find_checkpoint(tmp_path / name)) for name in ("run", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_preset_has_the_shape_and_initialisation_of_the_paper():
    ours, theirs = build_run_config("bert-base").model, BertConfig()
    assert (ours.d_model, ours.n_layers, ours.n_heads) == (
        theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads,
    )  # fmt: skip
    assert (ours.vocab_size, ours.context_length) == (theirs.vocab_size, theirs.max_position_embeddings)
    assert (ours.dropout, ours.init_std) == (theirs.hidden_dropout_prob, theirs.initializer_range)
    assert (ours.norm_eps, ours.activation) == (theirs.layer_norm_eps, theirs.hidden_act)
    assert (ours.bias, ours.embedding_norm, ours.output_transform) == (True, True, True)
