"""What depends on the device: the same on a GPU as on a CPU, as far as their sums round alike.

`make test-gpu` runs this with --device cuda; without, what a CPU computes is compared with float64, and with what was
saved.
"""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.config.run_config import IGNORE_INDEX, HardwareConfig, RunConfig, TrainingConfig
from lm.decoding.batching import Sample, Token, decode
from lm.decoding.sampling import Sampler
from lm.model import DecoderOnly, build_model
from lm.model.loss import linear_cross_entropy
from lm.training.loop import train
from lm.training.run import Run
from lm.training.run_log import Step
from lm.training.training_corpus import TrainingCorpus
from tests.lm.decoding.session_driver import session
from tests.lm.training.runs import resume_run, start_run
from tests.tolerances import assert_close

pytestmark = pytest.mark.device

SHAPE = {"vocab_size": 257, "context_length": 32, "d_model": 64, "n_layers": 2, "n_heads": 4}
IDS = np.random.default_rng(0).integers(257, size=(3, 32))


@pytest.fixture
def run_on(tmp_path, shards, byte_tokenizer):
    """Start a run on a device."""

    def made(device: str, name: str, *, dtype: str = "float32", **training: object) -> Run:
        settings = TrainingConfig(**{"steps": 12, "batch_size": 8, "warmup_steps": 2, "evaluate_every": 6, **training})
        model = ModelConfig(**{**SHAPE, "dropout": 0.0, "positions": "rotary", "qk_norm": True})
        config = RunConfig(model, training=settings, hardware=HardwareConfig(device=device, dtype=dtype))
        return start_run(tmp_path / name, config, TrainingCorpus(shards, byte_tokenizer))

    return made


def losses(run: Run) -> list[float]:
    return [event.loss for event in train(run) if isinstance(event, Step)]


@pytest.mark.parametrize(
    "fields",
    [
        *({"positions": scheme} for scheme in ("rotary", "learned", "sinusoidal", "alibi", "relative", "t5")),
        {"attention": "window", "attention_window": 5},
        {"experts": 4, "experts_per_token": 2},
    ],
)
def test_logits_are_those_of_a_cpu(gpu, fields):
    model = build_model(ModelConfig(**{**SHAPE, **fields})).eval()
    ids = torch.from_numpy(IDS)
    with torch.inference_mode():
        expected = model(ids)
        found = model.to(gpu)(ids.to(gpu)).cpu()
    assert_close(found, expected, model=model)


def test_logits_of_a_translator_are_those_of_a_cpu_with_padding(gpu):
    model = build_model(ModelConfig(**SHAPE, n_encoder_layers=2)).eval()
    source, target, lengths = torch.from_numpy(IDS), torch.from_numpy(IDS[:, :9]), torch.tensor([32, 5, 17])
    with torch.inference_mode():
        expected = model(source, target, lengths=lengths)
        model.to(gpu)
        found = model(source.to(gpu), target.to(gpu), lengths=lengths.to(gpu)).cpu()
    assert_close(found, expected, model=model)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_a_loss_and_its_gradients_are_those_of_float64(device, softcap, dtype, tolerance):
    """Of a vocabulary that no matmul is aligned to."""
    numbers = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*shape, generator=numbers).to(dtype) for shape in ((96, 32), (257, 32), (257,)))
    targets = torch.randint(257, (96,), generator=numbers)
    targets[::7] = IGNORE_INDEX
    exact = [tensor.double().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = F.linear(*exact)
    capped = softcap * torch.tanh(logits / softcap) if softcap else logits
    F.cross_entropy(capped, targets, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=0.1).backward()
    found = [tensor.to(device).requires_grad_() for tensor in (hidden, weight, bias)]
    loss, _ = linear_cross_entropy(
        found[0], found[1], targets.to(device), bias=found[2], label_smoothing=0.1, softcap=softcap
    )
    loss.backward()
    for mine, theirs in zip(found, exact, strict=True):
        assert (mine.grad.cpu().double() - theirs.grad).norm() <= tolerance * theirs.grad.norm()


@pytest.mark.medium
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_of_a_run_are_those_of_a_cpu(gpu, run_on, optimizer):
    settings = {"optimizer": optimizer, "micro_batch_size": 3, "label_smoothing": 0.1}
    expected, found = losses(run_on("cpu", "cpu", **settings)), losses(run_on(gpu, "gpu", **settings))
    assert found == pytest.approx(expected, rel=2e-3)
    assert found[-1] < found[0]


def test_bfloat16_learns_as_well(device, run_on):
    exact, rounded = losses(run_on(device, "exact")), losses(run_on(device, "rounded", dtype="bfloat16"))
    assert rounded == pytest.approx(exact, rel=0.02)


@pytest.mark.medium
def test_a_resumed_run_continues_as_if_it_had_never_stopped(device, run_on):
    whole = losses(run_on(device, "whole"))
    steps = iter(range(1, 100))
    stopped = run_on(device, "stopped")
    first = [event.loss for event in train(stopped, stop=lambda: next(steps) == 6) if isinstance(event, Step)]
    assert first + losses(resume_run(stopped.folder)) == whole


def test_greedy_text_is_that_of_a_cpu(gpu):
    model = build_model(ModelConfig(**SHAPE)).eval()
    assert isinstance(model, DecoderOnly)

    def continued() -> list[int]:
        sampler = Sampler.from_config(SamplingConfig(temperature=0))
        sample = Sample([1, 2, 3], sampler, sampler.rng(0), max_tokens=12)
        events = decode(session(model), [sample], batch_size=1)
        return [event.id for event in events if isinstance(event, Token)]

    expected = continued()
    model.to(gpu)
    assert continued() == expected


def test_a_step_waits_for_the_device_once(device, run_on):
    if device != "cuda":
        pytest.skip("only a GPU is waited for")
    events = train(run_on(device, "run", evaluate_every=0, optimizer="muon"))
    for _ in range(3):
        next(events)
    assert len(waits := waits_in(lambda: next(events))) <= 1, waits


def waits_in(work: Callable[[], object]) -> list[str]:
    """What torch says of each wait for a GPU in some work; it also warns that this is a prototype, which is no wait."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(warning.message) for warning in caught]
    return [message for message in said if message.startswith("called a synchronizing CUDA operation")]


def test_only_waits_are_counted(monkeypatch):
    def warns_of_itself(_: str) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", warns_of_itself)
    wait = "called a synchronizing CUDA operation (Triggered internally at ...)"
    assert waits_in(lambda: None) == []
    assert waits_in(lambda: warnings.warn(wait, stacklevel=2)) == [wait]
