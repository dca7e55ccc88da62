"""llama.cpp computes what ours compute from exported files; needs its Python binding, `llama-cpp-python`."""

import unicodedata

import numpy as np
import pytest
import torch

from lm.api import export
from lm.checkpoint import load_model
from lm.hardware import Hardware
from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.interop.gguf.llama_cpp_models import loaded, logits
from tests.lm.interop.gguf.models import FAMILIES, random_config
from tests.lm.interop.gguf.pieces_elsewhere import sentencepiece_like
from tests.lm.interop.gguf.test_vocabulary import KINDS
from tests.lm.interop.hugging_face.models import ids, random_run
from tests.lm.interop.hugging_face.test_tokenizers import random_texts
from tests.tolerances import assert_close

pytest.importorskip("gguf")
pytestmark = pytest.mark.slow

HARDWARE = Hardware("cpu", "float32", 1)
FROM_A_TABLE = ("gpt2", "gptneox")  # of GELU, in half precision
TOKENS = 30


def ours(run, tokens):
    with torch.no_grad():
        return load_model(run, HARDWARE).model(torch.tensor([tokens]))[0].numpy()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_are_those_of_the_run(architecture, seed, tmp_path):
    run = random_run(tmp_path / "run", random_config(architecture, seed))
    export(run, tmp_path / "out.gguf", "gguf")
    tokens = ids(1, TOKENS, seed=seed)[0].tolist()
    found, expected = logits(loaded(tmp_path / "out.gguf"), tokens), ours(run, tokens)
    if architecture in FROM_A_TABLE:
        np.testing.assert_allclose(found, expected, atol=5e-3, rtol=5e-3)
    else:
        assert_close(found, expected, model=load_model(run, HARDWARE).model)


TOKENIZERS = {
    **KINDS,
    "byte": lambda: make_tokenizer("byte"),
    "SentencePiece": sentencepiece_like,
    "SentencePiece, no space": lambda: sentencepiece_like(begins_with_space=False),
}


@pytest.mark.parametrize("words", TOKENIZERS)
def test_texts_become_the_same_ids_and_these_the_same_texts(words, tmp_path):
    """Of texts in the normal form of the tokenizer, to which llama.cpp brings none."""
    tokenizer = TOKENIZERS[words]()
    run = make_run(tmp_path / "run", tokenizer=tokenizer, n_layers=1, context_length=64)
    export(run, tmp_path / "out.gguf", "gguf")
    model = loaded(tmp_path / "out.gguf")
    texts = random_texts(2000)
    for text in (unicodedata.normalize("NFC", text) for text in texts) if words == "qwen2" else texts:
        data = text.encode()
        expected = tokenizer.encode(text)
        assert model.tokenize(data, add_bos=False) == expected, repr(text)
        assert model.tokenize(data) == [tokenizer.start_of_text, *expected]
        added = b" " if data and words == "SentencePiece" else b""  # the space that its texts begin with
        assert model.detokenize(expected) == added + data
