"""The endpoints that show what a model computes give what the library and the commands give."""

import math

import numpy as np
import pytest

import lm
from lm.config.inference import SamplingConfig
from lm.decoding.sampling import History, Sampler
from lm.evaluation.attention import compute_attention
from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.evaluation.small_models import score_document
from tests.lm.serving.conftest import RUNS, served
from tests.waiting import SECONDS

httpx, torch = pytest.importorskip("httpx"), pytest.importorskip("torch")
pytest.importorskip("uvicorn")

TEXT = 2 * "The owl saw the fox by the mill. Über den Bäumen sang 狐 the owl, and the fox ran to the mill 🦊 again."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "text")


@pytest.fixture(scope="module")
def ask(folder):
    cased = make_run(folder.parent / "cased", tokenizer=make_tokenizer("bpe", inline_casing=True))
    with (
        served(folder, cased, RUNS / "translation") as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
    ):

        def ask(path, **body):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield ask


@pytest.fixture(scope="module")
def model(folder):
    return lm.load(folder, threads=1)


def test_scores_are_those_of_the_windows_of_perplexity(ask, model):
    """The text has several windows of the context of 32 tokens."""
    found = ask("/score", model="text", text=TEXT, top=4)
    ids = model.tokenizer.encode(TEXT)
    expected = score_document(model.module, ids, context=32, stride=16, start_token=model.tokenizer.start_of_text)
    assert len(ids) > 64
    assert [token["id"] for token in found["tokens"]] == ids
    assert [token["nats"] for token in found["tokens"]] == pytest.approx(list(expected), abs=1e-4)
    assert found["nats"] == pytest.approx(float(expected.sum()), abs=1e-3)
    assert found["bits_per_byte"] == pytest.approx(float(expected.sum()) / math.log(2) / len(TEXT.encode()), abs=1e-5)
    data = TEXT.encode()
    spelled = [data[token["offset"] : token["offset"] + token["bytes"]] for token in found["tokens"]]
    assert b"".join(spelled) == data
    for token in found["tokens"]:
        best = [other["probability"] for other in token["alternatives"]]
        assert best == sorted(best, reverse=True)
        own = math.exp(-token["nats"])
        assert (token["rank"] <= 4) is any(other["id"] == token["id"] for other in token["alternatives"])
        assert token["rank"] > 4 or own == pytest.approx(best[token["rank"] - 1], abs=1e-5)


def test_tokens_have_the_capitals_that_marks_before_them_say(ask):
    text, marks = "THE Owl saw", "\x0e\x0f"
    found = ask("/score", model="cased", text=text)["tokens"]
    assert [token["text"][-1] for token in found if not token["text"][-1].isalpha()] == ["\x0e", "\x0f"]
    for token in found:
        assert token["text"].rstrip(marks) == text[token["offset"] : token["offset"] + token["bytes"]]
    shown = {token["text"] for token in ask("/next", model="cased", prompt="THE OW", top=300)["tokens"]}
    assert {"L", "\x0e"} < shown
    assert "l" not in shown


def test_the_next_token_has_its_probability_before_and_after_the_filters(ask, model):
    settings = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3}
    found = ask("/next", model="text", prompt="The owl saw", top=300, **settings)
    frame = [model.tokenizer.start_of_text, *model.tokenizer.encode("The owl saw")]
    logits = model.logits(frame)[-1:]
    before = logits.softmax(-1)[0]
    sampler = Sampler.from_config(SamplingConfig(**settings))
    after = sampler.probabilities(logits, History([frame], [len(frame)]))[0]
    assert len(found["tokens"]) == len(before)
    for token in found["tokens"]:
        assert token["probability"] == pytest.approx(float(before[token["id"]]), abs=1e-5)
        assert token["filtered"] == pytest.approx(float(after[token["id"]]), abs=1e-5)
    assert found["kept"] == int((after > 0).sum()) <= 20


def test_attention_is_that_of_lm_attention(ask, model):
    found = ask("/attention", model="text", text="The owl saw")
    expected = model.attention("The owl saw", unit="tokens")
    assert np.array(found["weights"]) == pytest.approx(expected.weights, abs=1e-4)
    assert [token["text"] for token in found["keys"]] == [unit.label for unit in expected.keys]


def test_a_model_of_texts_does_not_translate(ask):
    with pytest.raises(AssertionError, match="model 'text' continues texts; it does not translate"):
        ask("/translate", model="text", text="one two")


def test_translations_are_those_of_lm_translate(ask):
    found = ask("/translate", model="translation", text=["one two", "", "three"], n_best=2, alignments=True)
    loaded = lm.load(RUNS / "translation", threads=1)
    expected = list(loaded.translations(["one two", "", "three"], n_best=2))
    for result, line in zip(found["results"], expected, strict=True):
        assert result["source"] == line.source
        assert [each["text"] for each in result["translations"]] == [each.text for each in line.translations]
        assert [each["score"] for each in result["translations"]] == pytest.approx(
            [each.score for each in line.translations], abs=1e-4
        )
        for translation in result["translations"]:
            assert (translation["alignment"] is None) == (not line.source)
            if alignment := translation["alignment"]:
                attention = compute_attention(loaded.loaded, line.source, translation["tokens"])
                assert alignment["source"] == line.source.split()
                assert alignment["target"] == translation["text"].split()
                assert list(map(tuple, alignment["pairs"])) == attention.alignments()
