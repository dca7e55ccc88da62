"""Models and results are readable where Python shows them; threads are those that were asked for."""

import re

import pytest
import torch

import lm
from lm.files import atomic_new_file, atomic_new_folder
from lm.hardware import MAX_THREADS
from tests.golden.make_runs import RUNS


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(name: str) -> lm.Model:
    return lm.load(RUNS / name, threads=1)


def test_models_and_results_are_shown_in_a_readable_line():
    gpt, translation = loaded("gpt"), loaded("transformer")
    result = gpt.perplexity(RUNS / "counting-short.txt")
    (translated,) = translation.translations(["six five one"])
    shown = {
        gpt: r"<lm.Model .*gpt/checkpoints/step-150: 3,378 parameters, continues texts, on cpu>",
        translation: r"<lm.Model .*/step-1200: [\d,]+ parameters, translates, on cpu>",
        gpt.loaded: r"<.*gpt/checkpoints/step-150: 3,378 parameters, continues texts, on cpu>",
        gpt.tokenizer: r"<Tokenizer: char, 15 tokens>",
    }
    results = [
        (result, r"<PerplexityResult: perplexity 1\.\d+, 0\.\d{4} bits/byte, 73 tokens, 73 bytes>"),
        (translated, r"<Translated 'six five one': <Translation 'sechs fünf eins', score -0\.000\d+>>"),
        (gpt.attention("one two"), r"<AttentionMap self: 1 layers, 2 heads, 2 queries, 2 keys>"),
        (lm.Trainer(lm.run_spec("a.txt")), r"<Trainer of a.txt>"),
        *shown.items(),
    ]
    for value, pattern in results:
        assert re.fullmatch(pattern, repr(value)), repr(value)
    assert repr(type(result)()) == "<PerplexityResult of no tokens>"


def test_a_trained_model_and_its_run(tmp_path):
    (tmp_path / "text.txt").write_text("The owl saw the fox.\n" * 30)
    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 32, "kind": "byte", "steps": 2}
    runs = []
    model = lm.train(
        tmp_path / "text.txt", out=tmp_path / "run", threads=1, device="cpu", **small,
        on_event=lambda event: runs.append(repr(event.run)) if hasattr(event, "run") else None,
    )  # fmt: skip
    assert runs == [f"<Run {tmp_path / 'run'}: step 0 of 2>"]
    assert repr(model).startswith(f"<lm.Model {tmp_path / 'run'}/checkpoints/step-2: ")


@pytest.mark.parametrize(
    ("keyword", "variable", "expected"), [(2, None, 2), (None, "3", 3), (2, "3", 2), (None, "", MAX_THREADS)]
)
def test_threads_of_a_model(monkeypatch, keyword, variable, expected):
    if variable is not None:
        monkeypatch.setenv("LM_THREADS", variable)
    torch.set_num_threads(5)
    lm.load(RUNS / "gpt", threads=keyword)
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize(("keyword", "variable"), [(2, None), (None, "2"), (2, "3")])
def test_threads_of_training_and_of_the_model_that_it_gives(monkeypatch, tmp_path, keyword, variable):
    if variable is not None:
        monkeypatch.setenv("LM_THREADS", variable)
    (tmp_path / "text.txt").write_text("The owl saw the fox.\n" * 30)
    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 32, "kind": "byte", "steps": 1}
    threads = {} if keyword is None else {"threads": keyword}
    model = lm.train(tmp_path / "text.txt", out=tmp_path / "run", **small, **threads)
    assert torch.get_num_threads() == model.loaded.config.plan.threads == 2
    assert lm.run_spec("a.txt", **threads).sources["hardware.threads"] == (
        "environment" if keyword is None else "python"
    )


@pytest.mark.parametrize("value", ["many", "0", "-1", "1025", "1.5"])
def test_a_wrong_number_of_threads_is_told_as_the_variable(monkeypatch, value):
    monkeypatch.setenv("LM_THREADS", value)
    for call in (lambda: lm.load(RUNS / "gpt"), lambda: lm.train("a.txt")):
        with pytest.raises(lm.LMError, match=f"^LM_THREADS must be an integer from 1 to 1024, not '{value}'$"):
            call()


def test_messages_about_places_name_settings(tmp_path):
    (tmp_path / "file").write_text("taken")
    for place, opened in ((tmp_path / "file", atomic_new_file), (tmp_path, atomic_new_folder)):
        with pytest.raises(lm.LMError, match="choose a") as raised, opened(place):
            pass
        assert raised.value.settings == ("out",)
        assert "-o" not in str(raised.value).removeprefix(str(place))
