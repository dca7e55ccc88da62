"""Training an encoder-decoder: it learns to copy and to reverse, resumes exactly, and translates as it goes."""

import random
from pathlib import Path

import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import DataConfig, ParallelTextConfig, RunConfig, TokenizerConfig, TrainingConfig
from lm.corpus import survey
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import train_tokenizers
from lm.text.parallel_text import find_sources
from lm.training.loop import train
from lm.training.run import Run
from lm.training.run_log import Evaluation, Sample, StoppedEarly
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import stop_after, sums
from tests.lm.training.runs import resume_run, start_run

ONE_STACK = {"decoder_only": True, "n_layers": 3, "n_encoder_layers": 0}
WORDS = ["ba", "du", "ki", "mo", "ne", "pa", "ru", "so", "ti", "vo"]


def sentences(count: int, seed: int) -> list[list[str]]:
    chance = random.Random(seed)
    return [[chance.choice(WORDS) for _ in range(chance.randint(2, 5))] for _ in range(count)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Tokenizers and tokens, which are the same in many tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make_run(tmp_path, monkeypatch, cache):
    """Start a run that is to learn `rule`, from words to words."""
    monkeypatch.setenv("LM_CACHE", str(cache))

    def make(
        rule, *, name: str = "run", count: int = 600, model: dict | None = None, pairs: dict | None = None, **training
    ) -> Run:
        for split, size, seed in (("train", count, 1), ("val", 100, 2)):
            lines = sentences(size, seed)
            (tmp_path / f"{split}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
            (tmp_path / f"{split}.de").write_text("".join(" ".join(rule(line)) + "\n" for line in lines))
        shape = {"d_model": 32, "n_layers": 1, "n_encoder_layers": 1, "n_heads": 2, "dropout": 0.0, **(model or {})}
        settings = {
            "batch_tokens": 600, "steps": 250, "warmup_steps": 25, "learning_rate": 5e-3, "evaluate_every": 250,
            "final_learning_rate_fraction": 0.0, **training,
        }  # fmt: skip
        config = RunConfig(
            model=ModelConfig(**shape),
            parallel=ParallelTextConfig(**(pairs or {})),
            training=TrainingConfig(**settings),
        )
        return start_on(tmp_path, tmp_path / name, config)

    return make


def start_on(files: Path, folder: Path, config: RunConfig) -> Run:
    found, held_out = (
        find_sources(source=[str(files / f"{split}.en")], target=[str(files / f"{split}.de")])
        for split in ("train", "val")
    )
    corpus = survey.scan_corpus(found, DataConfig(), config.parallel, held_out=held_out)
    tokenizers = train_tokenizers(corpus, TokenizerConfig(vocab_size=290), config.parallel)
    prepared = prepare_corpus(corpus, tokenizers[0], parallel=config.parallel, source_tokenizer=tokenizers[1])
    return start_run(folder, config, TrainingCorpus(prepared.folder, *tokenizers))


@pytest.mark.medium
def test_a_layer_learns_a_rule_of_order(make_run):
    run = make_run(
        lambda words: words[::-1], count=3000, model={"d_model": 64, "n_heads": 4}, steps=200, evaluate_every=200,
        warmup_steps=15, batch_tokens=400, learning_rate=6e-3,
    )  # fmt: skip
    events = list(train(run))
    source, target = (Path(f"{run.folder.parent}/val.{side}").read_text().splitlines() for side in ("en", "de"))
    shown = {event.prompt: event.text for event in events if isinstance(event, Sample)}
    assert shown == {text: dict(zip(source, target, strict=True))[text] for text in shown}
    last = [event for event in events if isinstance(event, Evaluation)][-1]
    assert last.bleu > 95
    assert last.loss < 0.05


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({"n_layers": 2, "n_encoder_layers": 2, "experts": 3, "expert_every": 2, "gate_noise": 1.0}, {}),
        (ONE_STACK, {"r_drop": 1.0}),
    ],
)
def test_resuming_equals_never_having_stopped(make_run, model, training):
    """With BPE dropout for half of the run, dropout, accumulation and a moving average."""
    settings = {
        **training, "count": 100,
        "model": {"dropout": 0.2, **model}, "pairs": {"bpe_dropout": 0.2, "bpe_dropout_until": 0.5},
        "steps": 8, "ema": 0.9, "micro_batch_size": 20, "batch_tokens": 300, "evaluate_every": 0, "bleu_sentences": 4,
    }  # fmt: skip
    whole, parts = make_run(list, name="whole", **settings), make_run(list, name="parts", **settings)
    list(train(whole))
    assert isinstance(list(train(parts, stop=stop_after(3)))[-1], StoppedEarly)
    resumed = resume_run(parts.folder)
    list(train(resumed))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert sums(whole)[name] == sums(resumed)[name]


@pytest.mark.medium
def test_the_best_by_bleu(make_run):
    run = make_run(list, steps=60, evaluate_every=15, best_by="bleu", bleu_sentences=20, keep_checkpoints=0)
    events = [event for event in train(run) if isinstance(event, Evaluation)]
    best = max(events, key=lambda event: (event.bleu, -event.loss, -event.step))
    assert run.state.best_step == best.step
    assert run.state.best_bleu == best.bleu
