"""The endpoints that show what a model computes give what the library and the commands give."""

import json
import math

import numpy as np
import pytest

import lm
from lm.config.decoding import SamplingConfig
from lm.decoding.sampling import History, Sampler
from lm.decoding.translation import TranslationModel
from lm.evaluation.attention import compute_translation_attention
from tests.cli.small_runs import make_run
from tests.lm.evaluation.small_models import score_document
from tests.lm.serving.conftest import RUNS, served

httpx, torch = pytest.importorskip("httpx"), pytest.importorskip("torch")
pytest.importorskip("uvicorn")

TEXT = 2 * "The owl saw the fox by the mill. Über den Bäumen sang 狐 the owl, and the fox ran to the mill 🦊 again."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "text")
    for name, entry in (("metrics.jsonl", {"loss": 2.0}), ("timings.jsonl", {"tokens_per_second": 10})):
        lines = [json.dumps({"step": step, **entry}) for step in (1, 2, 3)]
        (folder / "text" / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def ask(folder):
    with (
        served(folder / "text", RUNS / "translation", RUNS / "masked", RUNS / "lstm", "--runs", folder) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):

        def ask(path, status=200, **body):
            answer = client.post(path, json=body) if body else client.get(path)
            assert answer.status_code == status, answer.text
            return answer.json()

        yield ask


@pytest.fixture(scope="module")
def model(folder):
    return lm.load(folder / "text", threads=1)


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
    assert found["filtered_entropy"] < found["entropy"]


def test_attention_is_that_of_lm_attention(ask, model):
    found = ask("/attention", model="text", text="The owl saw")
    expected = model.attention("The owl saw", unit="tokens")
    assert np.array(found["weights"]) == pytest.approx(expected.weights, abs=1e-4)
    assert [token["text"] for token in found["keys"]] == list(expected.keys.labels)
    one = ask("/attention", model="text", text="The owl saw", layer=2, head=1)
    assert one["weights"] == [[found["weights"][1][0]]]
    refused = ask("/attention", status=400, model="text", text="The owl saw", layer=3)
    assert refused["error"]["param"] == "layer"


def test_tokens_and_text_are_each_other_s_inverse(ask):
    found = ask("/tokenize", model="text", text=TEXT)
    assert found["count"] == len(found["tokens"])
    ids = [token["id"] for token in found["tokens"]]
    assert ask("/detokenize", model="text", tokens=ids)["text"] == TEXT
    assert "no token 300" in ask("/detokenize", status=400, model="text", tokens=[300])["error"]["message"]


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
                attention = compute_translation_attention(
                    TranslationModel.from_loaded(loaded.loaded),
                    line.source,
                    translation["tokens"],
                    unit="words",
                    to=None,
                )
                assert alignment["target"] == list(attention.queries.labels)
                assert alignment["source_words"] == list(attention.keys.words)
                assert np.array(alignment["weights"]) == pytest.approx(attention.mean(), abs=1e-4)
                assert list(map(tuple, alignment["pairs"])) == attention.alignments()


def test_blanks_are_filled_as_by_lm_fill(ask):
    found = ask("/fill", model="masked", text="one [MASK] three", top_k=3)
    expected = lm.load(RUNS / "masked", threads=1).fill("one [MASK] three", k=3)
    assert [each["id"] for each in found["blanks"][0]] == [each.id for each in expected.blanks[0]]
    assert found["filled"] == expected.filled


def test_curves_of_a_run_can_be_read_from_a_step_on(ask):
    (run,) = ask("/runs")["runs"]
    assert run["name"] == "text"
    whole = ask("/runs/text/metrics")
    assert whole["last_step"] == 3
    assert whole["metrics"]["loss"] == {"steps": [1, 2, 3], "values": [2.0, 2.0, 2.0]}
    assert ask("/runs/text/metrics?from=3")["metrics"]["tokens_per_second"] == {"steps": [3], "values": [10.0]}
    for name in ("other", "%2e%2e", "..%2ftext", "text%00"):
        ask(f"/runs/{name}/metrics", status=404)
