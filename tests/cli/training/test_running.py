"""The summary of a finished run: its score, what is wrong with it, and the commands that come next."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training import running
from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, RunPlan
from lm.config.training import TrainingConfig
from lm.data.labels import LabelCounts
from lm.run_folder import TrainingState


@pytest.fixture
def summarised(capsys, monkeypatch, tmp_path):
    """Returns the lines of the summary of a run that was trained for 100 of 100 steps, up to the next commands."""
    monkeypatch.setattr(running, "peak_memory", lambda: 2e9)
    monkeypatch.setattr(running, "record_decoding_dtype", lambda folder, hardware: None)
    monkeypatch.setattr(running, "has_improved", lambda config, state: state.best_step != 0)

    def summarise(
        *, model: dict[str, Any] | None = None, training: dict[str, Any] | None = None, supervised: bool = False,
        last_loss: float | None = 1.0, accuracy: float | None = None, bits: float | None = None,
        ngram_bits: tuple[float, ...] = (), labels: dict[str, int] | None = None, plan: dict[str, Any] | None = None,
        holds_conversations: bool = False, **state: Any,
    ) -> list[str]:  # fmt: skip
        monkeypatch.setattr(running, "best_accuracy", lambda *_: accuracy)
        monkeypatch.setattr(running, "best_bits_per_byte", lambda *_: bits)
        monkeypatch.setattr(running, "count_labels", lambda folder: LabelCounts({}, labels or {}))
        config = RunConfig(ModelConfig(**(model or {})), data=DataConfig(supervised=supervised),
                           training=TrainingConfig(**(training or {})))  # fmt: skip
        run = SimpleNamespace(
            state=TrainingState(**{"step": 100, "training_seconds": 65.0, "finished": True, **state}),
            config=config, folder=Path("runs/a"), last_validation_loss=last_loss,
            data=SimpleNamespace(holds_conversations=holds_conversations),
            plan=RunPlan("cpu", "float32", 1, 100, "tokens", "key", **(plan or {})),
        )  # fmt: skip
        running.report_results(run, ngram_bits=ngram_bits)
        return capsys.readouterr().err.splitlines()

    return summarise


DONE = "done    1:05 of training in all, peak memory 2 GB"
NEXT = ['next    lm generate runs/a "..."', "        lm perplexity runs/a FILE", "        lm info runs/a"]
BEST = {"best_loss": 1.0, "best_step": 100}


def test_a_run_without_evaluations_has_no_best(summarised):
    assert summarised() == [DONE, *NEXT]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (BEST, "best    validation loss 1.0000, perplexity 2.72 in disjoint windows, at step 100"),
        ({**BEST, "supervised": True}, "best    validation loss 1.0000, perplexity 2.72, at step 100"),
        ({**BEST, "model": {"n_encoder_layers": 1}, "best_bleu": 21.56},
         "best    validation loss 1.0000, perplexity 2.72, BLEU 21.6, at step 100"),
        ({**BEST, "accuracy": 0.875, "labels": {"a": 1, "b": 99}},
         "best    validation loss 1.0000, accuracy 87.5%, at step 100"),
        ({"best_loss": 1.0, "best_step": 99, "last_loss": 1.05},
         "best    validation loss 1.0000, perplexity 2.72 in disjoint windows, at step 99; 1 later step changed the "
         "loss by +5.0%, and are not in the best checkpoint"),
        ({"best_loss": 2.0, "best_step": 60, "last_loss": 1.9},
         "best    validation loss 2.0000, perplexity 7.39 in disjoint windows, at step 60; 40 later steps changed the "
         "loss by -5.0%, and are not in the best checkpoint"),
    ],
)  # fmt: skip
def test_the_best_score_is_the_one_that_tells_most(summarised, settings, line):
    assert summarised(**settings)[1] == line


def test_a_run_that_never_improved_says_so(summarised):
    text = "        no improvement: no later step was better than what training began with"
    assert text in summarised(best_loss=1.0, best_step=0)
    assert text not in summarised(**BEST)


@pytest.mark.parametrize("bits", [1.5, 2.01])
def test_the_score_of_an_n_gram_baseline_stands_beside_that_of_the_model(summarised, bits):
    lines = summarised(**BEST, bits=bits, ngram_bits=(3.0, 2.0, 2.5))
    assert lines[2:-3] == [f"        {bits:.2f} bits/byte; n-gram baseline 2.00"]


@pytest.mark.parametrize(("accuracy", "labels"), [(0.59, {"a": 30, "b": 50, "c": 20}), (1.0, {"a": 4, "b": 4})])
@pytest.mark.parametrize("settings", [{}, {"last_loss": 1.2}, {"plan": {"on_plateau": True}}])
def test_the_accuracy_of_the_most_frequent_label_stands_beside_that_of_the_model(
    summarised, accuracy, labels, settings
):
    lines = summarised(**BEST, accuracy=accuracy, labels=labels, **settings)
    label, total = max(labels, key=labels.get), sum(labels.values())
    assert lines[2:-3] == [f"        always {label!r} is right for 50.0% of the {total} held-out examples"]


@pytest.mark.parametrize(
    ("settings", "commands"),
    [
        ({"model": {"n_encoder_layers": 1}},
         ["lm translate runs/a < FILE", "lm evaluate runs/a --source FILE --target FILE"]),
        ({"model": {"objective": "masked", "labels": ("a", "b")}},
         ["lm classify runs/a FILE", "lm evaluate runs/a FILE", "lm info runs/a"]),
        ({"model": {"objective": "masked", "labels": ("a", "b")}, **BEST},
         ["lm classify runs/a FILE", "lm evaluate runs/a", "lm info runs/a"]),
        ({"model": {"objective": "masked"}},
         ['lm fill runs/a "... [MASK] ..."', "lm train FILE --supervised --from runs/a", "lm info runs/a"]),
        ({"holds_conversations": True}, ["lm chat runs/a", "lm perplexity runs/a FILE", "lm info runs/a"]),
    ],
)  # fmt: skip
def test_the_next_commands_are_those_of_its_kind(summarised, settings, commands):
    first, *rest = commands
    assert summarised(**settings)[-len(commands) :] == [f"next    {first}", *(f"        {each}" for each in rest)]
