"""What is said of each event before the first step: the corpus, its labels, the base run, and where a run continues."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training.report import report, report_labels
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, RunPlan
from lm.config.training import TrainingConfig
from lm.corpus.manifest import Manifest, PairManifest, PairSplit, Repetition, SplitRecord
from lm.data.labels import LabelCounts
from lm.errors import Advice
from lm.hardware import Hardware
from lm.model.lora import build_model_with_lora
from lm.training.planning.continued_training import ContinuedTrainingChosen
from lm.training.trainer import Started
from lm.training.training_corpus import CorpusPrepared, TokenizerSampling
from tests.lm.data.test_training_data import CountData

RECORD: dict[str, Any] = {"key": "k", "sources": (), "validation_sources": (), "validation": "0.1"}


@pytest.fixture
def said(capsys):
    """Returns the lines that are said of an event."""

    def lines(event: Any) -> list[str]:
        report(event)
        return capsys.readouterr().err.splitlines()

    return lines


def corpus(*, source: Any = None) -> Any:
    return SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=1200), source_tokenizer=source, folder="cache/tokens")


def text(kind: str = "text", *, repetition: Repetition | None = None, **event: Any) -> CorpusPrepared:
    """A corpus of 90 and 10 documents."""
    splits = {"train": SplitRecord(90, 4500, 9000, (4500,)), "validation": SplitRecord(10, 400, 1000, (400,))}
    manifest = Manifest(kind=kind, tokenizer="", vocab_size=1200, dtype="uint16", separator="", splits=splits,
                        repetition=repetition, **RECORD)  # fmt: skip
    return CorpusPrepared(corpus(), manifest, **{"reused": None, **event})


def pairs(*, source: Any = None, train: PairSplit, validation: PairSplit, **event: Any) -> CorpusPrepared:
    splits = {"train": train, "validation": validation}
    manifest = PairManifest(languages=("en", "de"), max_length=9, max_ratio=9.0, splits=splits, **RECORD)
    return CorpusPrepared(corpus(source=source), manifest, None, **event)


def test_a_corpus_is_described_by_what_it_holds(said):
    sizes = "corpus  10 kB, vocabulary 1,200: "
    assert said(text()) == [sizes + "4.5k tokens to train on, 400 held out, 2.00 bytes/token"]
    assert said(text("examples")) == [sizes + "90 examples to train on, 10 held out"]
    assert said(text("conversations")) == [
        sizes + "90 conversations to train on, 10 held out",
        "        rows of messages: the loss, and each evaluation, counts the tokens of the assistant alone",
    ]
    assert said(TokenizerSampling(20_000_000, 3_000_000_000)) == ["tokenizer trained on a sample: 20 MB of 3 GB"]


def test_notes_on_files_and_the_folder_of_the_tokens_come_first(said):
    notes = (Advice("2 files were skipped", settings=["skip_unreadable"]),)
    for reused, place in ((False, "cache/tokens"), (True, "cache/tokens (made before)")):
        lines = said(text(reused=reused, notes=notes))
        assert lines[:2] == ["note    2 files were skipped (--skip-unreadable)", f"tokens  {place}"]
    assert len(said(text(notes=notes))) == 1  # of prepared tokens that were given, all is known


@pytest.mark.parametrize(("trained", "is_reported"), [(None, False), (1200, False), (1201, True)])
def test_a_vocabulary_that_is_smaller_than_asked_for_is_reported(said, trained, is_reported):
    line = "        (no more pairs occur often enough for a vocabulary of 1,201)"
    assert said(text(trained=trained))[1:] == [line] * is_reported


@pytest.mark.parametrize(
    ("kind", "repetition", "lines"),
    [
        ("text", Repetition(0, 0.049, 50), []),
        ("text", Repetition(4, 0.0, 50), ["copies  4 of 100 documents (4.0%) repeat another"]),
        ("examples", Repetition(4, 0.0, 0), ["copies  4 of 100 examples (4.0%) repeat another, all in the same split"]),
        ("examples", Repetition(4, 0.01, 0), ["copies  4 of 100 examples (4.0%) repeat another"]),
        ("text", Repetition(0, 0.05, 50), ["warning 5% of the held-out text occurs in the training text too: the "
                                           "validation loss will look better than it is"]),
    ],
)  # fmt: skip
def test_copies_are_counted_and_warned_of_from_5_percent_of_the_held_out_text(said, kind, repetition, lines):
    assert said(text(kind, repetition=repetition))[1:] == lines


def test_pairs_are_described_with_what_was_left_out_of_both_splits(said):
    kept = pairs(train=PairSplit(1500), validation=PairSplit(100))
    assert said(kept) == ["corpus  1,500 pairs to train on, 100 held out, vocabulary 1,200"]
    some = pairs(
        source=SimpleNamespace(vocab_size=900),
        train=PairSplit(1500, blank=1, too_long=2000, ratio=3),
        validation=PairSplit(100, blank=4, too_long=5, ratio=6),
    )
    assert said(some) == [
        "corpus  1,500 pairs to train on, 100 held out, vocabulary 900 and 1,200",
        "        left out: 5 with a blank side, 2,005 too long (--max-length), 9 of unequal lengths "
        "(--set parallel.max_ratio)",
    ]


def test_pairs_that_are_held_out_in_vain_and_copies_are_warned_of(said):
    for seen, warned in ((0.049, False), (0.05, True)):
        event = pairs(train=PairSplit(90), validation=PairSplit(10), seen_in_training=seen, copies=("a.en",))
        _, *warnings = said(event)
        assert (
            any(line.startswith("warning 5% of the held-out pairs are among those to") for line in warnings) == warned
        )
        assert warnings[-1].startswith("warning a.en: source and target are the same text")


def test_labels_are_listed_up_to_twelve_with_their_fractions(capsys):
    for number, more in ((12, ""), (13, " and 1 more")):
        counts = {f"l{index}": 1000 if index == 0 else 1 for index in range(number)}
        report_labels(LabelCounts(counts, {}))
        labels, majority = capsys.readouterr().err.splitlines()
        assert labels.startswith(f"labels  {number}: l0 1,000 ({1000 / (999 + number):.1%}), l1 1 (0.1%), ")
        assert labels.endswith(f", l11 1 (0.1%){more}")
        assert majority.startswith(f"        always 'l0' would be right for {1000 / (999 + number):.1%} of the ")


def test_labels_without_an_example_to_train_on_are_named_up_to_twelve(capsys):
    report_labels(LabelCounts({"x": 1, **dict.fromkeys("ABCDEFGHIJKLM", 0)}, {}))
    (unseen,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning"))
    assert unseen.endswith("has the label 'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L'")


def test_what_was_chosen_for_another_text_stands_behind_the_losses_that_it_is_chosen_by(said):
    config = RunConfig(training=TrainingConfig(learning_rate=0.00123))
    chosen = {"initial_loss": None, "parent_loss": None, "ngram_loss": None, "fraction": None, "steps": None}
    for values, line in (
        ({}, "learning rate 1.2e-03"),
        ({"fraction": 0.123, "steps": 1}, "learning rate 1.2e-03 (12.3% of a new model's), 1 step (2.5 epochs)"),
        ({"initial_loss": 3.456}, "loss 3.46 on this text: learning rate 1.2e-03"),
        ({"initial_loss": 3.456, "parent_loss": 2.0, "ngram_loss": 4.0, "steps": 2000},
         "loss 3.46 on this text, 2.00 on the one it was trained on, 4.00 of an n-gram baseline: learning rate "
         "1.2e-03, 2,000 steps (2.5 epochs)"),
    ):  # fmt: skip
        event = ContinuedTrainingChosen(config, epochs=2.5, **{**chosen, **values})
        assert said(event) == [f"from    {line}"]


def resumed(*, dropout: float = 0.0, extended_at: int | None = None, overfit: Any = None, **changes: Any) -> Any:
    """A run of 2,000 steps at step 1,500."""
    plan = RunPlan("cpu", "float32", 1, 2000, "tokens", "key", extended_at=extended_at, decay_scale=0.7, **changes)
    config = RunConfig(ModelConfig(dropout=dropout), training=TrainingConfig(steps=2000))
    return SimpleNamespace(folder=Path("runs/a"), state=SimpleNamespace(step=1500), plan=plan, config=config,
                           overfit_checkpoint=overfit, stale_checkpoints=[], learning_rate=0.00123)  # fmt: skip


def test_a_resumed_run_says_where_it_continues_and_what_is_lost(said):
    first = "resume  runs/a at step 1,500 of 2,000"
    assert said(Started(resumed(), is_resumed=True)) == [first]
    run = resumed()
    run.stale_checkpoints = [Path("runs/a/checkpoints/step-1600"), Path("runs/a/checkpoints/step-1700")]
    event = Started(run, is_resumed=True, lost="step-1800", other_length={"epochs": 3.0})
    assert said(event) == [
        first,
        "        step-1800, the last checkpoint, is gone: what was learned after step 1,500 is lost",
        "        step-1600, step-1700: of another branch from here on; removed once this one has saved",
        "note    runs/a/config.json had another length than the checkpoint (steps 2000); to train that long: "
        "--epochs 3.0",
    ]


def test_an_extended_run_says_which_weights_and_learning_rate_it_continues_with(said):
    first, rate = "resume  runs/a at step 1,500 of 2,000", "learning rate 1.2e-03, 70% of its peak, falling to the end"
    assert said(Started(resumed(extended_at=1499, decay_step=1), is_resumed=True)) == [first]
    assert said(Started(resumed(extended_at=1500), is_resumed=True)) == [first]
    assert said(Started(resumed(extended_at=1500, decay_step=1500), is_resumed=True)) == [first, f"        {rate}"]
    best = SimpleNamespace(step=900, last_loss=2.34567, loss=2.1)
    run = resumed(extended_at=1500, decay_step=1500, dropout=0.25, overfit=best)
    assert said(Started(run, is_resumed=True)) == [
        first,
        "        it has overfit (validation loss 2.3457 at step 1,500, 2.1000 at its best): from the weights of "
        "step-900, the best",
        f"        {rate}; dropout 0.25",
    ]


def started(config: RunConfig, **plan: Any) -> Started:
    planned = RunPlan("cpu", "float32", 1, 40, "tokens", "key", **plan)
    run = SimpleNamespace(model=build_model_with_lora(config.model, config.lora), data=CountData(10), plan=planned,
                          config=config, hardware=Hardware("cpu", "float32", 1), folder=Path("runs/a"))  # fmt: skip
    return Started(run, is_tuned=bool(config.lora))


def test_adapters_and_passes_that_fit_the_memory_are_described(said):
    model = ModelConfig(vocab_size=10, context_length=4, d_model=16, n_layers=1, n_heads=2, d_ff=32)
    training = TrainingConfig(warmup_steps=5)
    assert said(started(RunConfig(model, training=training))) == ["run     runs/a"]
    # matrices of 16 x 16: queries, keys, values and outputs, each with two adapters of 2 x 16
    event = started(
        RunConfig(model, training=training, lora=LoraConfig(rank=2, on="attention")), micro_batch_tokens=4096
    )
    assert said(event) == [
        f"lora    rank 2 on attention: 256 trainable parameters ({256 / (256 + 160 + 4 * 256 + 3 * 512 + 3 * 16):.1%})",
        f"{'memory':<7} at most 4,096 tokens in one pass (--micro-batch-size)",
        "run     runs/a",
    ]
