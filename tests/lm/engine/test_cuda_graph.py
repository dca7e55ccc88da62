"""A recorded step gives the logits that a model gives, whatever was fed since it was recorded.

The recorder is not a GPU's but one for any device, as strict: it repeats operators on the tensors that they were called
with, and what Python made of numbers stays as it was.
"""

import logging
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.generator import Generator
from lm.engine import cuda_graph, selection
from lm.engine.cuda_graph import Computation
from lm.kernels import code_cache
from lm.model import attention
from lm.model.layers import quantise
from lm.model.transformer import DecoderOnly, build_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.random_blocks import random_block
from tests.lm.decoding.session_driver import SessionDriver
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

VOCABULARY, CONTEXT = 37, 16


class Recording(TorchDispatchMode):
    """Notes the operators that are called and the tensors that they give; what no GPU can record is an error."""

    forbidden = ("_local_scalar_dense", "lift_fresh", "nonzero", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object], list[Tensor]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split("::")[1].split(".")[0]
        if name in self.forbidden:
            raise RuntimeError(f"{name} cannot be recorded")
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tensors_of(found)))
        return found

    def repeat(self) -> None:
        for func, args, kwargs, outputs in self.calls:
            for fresh, output in zip(tensors_of(func(*args, **kwargs)), outputs, strict=True):
                if fresh.data_ptr() != output.data_ptr():
                    output.copy_(fresh)


def tensors_of(found: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


class Recorder:
    """What `CudaGraphRecorder` is to a GPU; it counts what it has recorded."""

    def __init__(self, _device: torch.device) -> None:
        self.recorded = 0

    def __call__(self, work: Computation) -> Computation:
        work()
        with Recording() as recording:
            output = work()
        self.recorded += 1

        def repeat() -> Tensor:
            recording.repeat()
            return output.clone()

        return repeat


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """Steps are recorded on a CPU, for few rows and positions at a time; nothing is compiled."""
    monkeypatch.setattr(cuda_graph, "RECORDERS", {"cpu": Recorder})
    monkeypatch.setattr(cuda_graph, "_MIN_KEYS", 4)
    monkeypatch.setattr(cuda_graph, "_MIN_BUFFER_LENGTH", 8)
    monkeypatch.setattr(attention, "_MIN_SOFTMAX_KEYS", 0)  # else a CPU is asked for numbers, as a GPU is not
    monkeypatch.setattr(selection, "RECORDERS", cuda_graph.RECORDERS)
    monkeypatch.setattr(code_cache, "is_complete", lambda: False)


def drawn(seed: int) -> ModelConfig:
    """Any model whose steps can be recorded; distances within a window have a test of their own."""
    of = random.Random(seed)
    fields = random_block(of, seed, ["rotary", "learned", "sinusoidal", "alibi", "relative", "t5", "none"])
    fields |= {"output_transform": of.random() < 0.3, "embedding_norm": of.random() < 0.3}
    return ModelConfig(vocab_size=VOCABULARY, context_length=CONTEXT, **fields)


def built(config: ModelConfig) -> DecoderOnly:
    model = build_model(config, seed=1).eval().requires_grad_(False)
    assert isinstance(model, DecoderOnly)
    return model.double()  # so that what differs is no rounding


def steps_recorded(model: DecoderOnly) -> int:
    step = cuda_graph._static_steps.get(model)
    return 0 if step is None or not step._recorded else step._record.recorded


def same(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected, terms=64, depth=40)


@pytest.mark.parametrize("seed", range(8))  # of which each kind of positions has one
def test_logits_equal_those_of_recomputation(seed):
    """Beyond the context too, with rows that are left out, repeated, and taken back."""
    model = built(drawn(seed))
    of, rows = random.Random(seed), seed % 5 + 1
    steps, again = SessionDriver(model), SessionDriver(model, cached=False)
    for length in [2, *[1] * 7, 2, *[1] * 14]:
        tokens = torch.randint(VOCABULARY, (rows, length))
        same(steps.feed(tokens), again.feed(tokens))
        if of.random() < 0.2:
            chosen = torch.tensor([of.randrange(rows) for _ in range(of.randint(1, 5))])
            rows = len(chosen)
            for each in (steps, again):
                each.reorder(chosen)
        if of.random() < 0.3:
            for each in (steps, again):
                each.truncate(each.length - 1)
    assert steps_recorded(model)


@pytest.mark.parametrize("seed", slow_after(3, range(8)))
def test_rows_that_come_and_go_are_as_without_a_cache(seed):
    model = built(drawn(seed))
    of, steps, again = random.Random(seed), SessionDriver(model), SessionDriver(model, cached=False)
    rows = 0
    for _ in range(24):
        if rows < 3 or of.random() < 0.2:
            prompts = [[of.randrange(VOCABULARY) for _ in range(of.randint(1, 6))] for _ in range(of.randint(1, 3))]
            rows += len(prompts)
            same(steps.join(prompts), again.join(prompts))
        tokens = torch.randint(VOCABULARY, (rows, 1))
        same(steps.feed(tokens), again.feed(tokens))
        if of.random() < 0.3:
            kept = sorted(of.sample(range(rows), of.randint(1, rows)))
            rows = len(kept)
            for each in (steps, again):
                each.keep(kept)
    assert steps_recorded(model)


def test_distances_within_a_window_are_as_without_a_cache(monkeypatch):
    """On a CPU attention asks here whether some query sees nothing, which it does not on a GPU."""
    monkeypatch.setattr(cuda_graph, "RECORDERS", {"cpu": lambda _: lambda work: work})
    fields = {"positions": "relative", "max_distance": 2, "attention": "window", "attention_window": 5}
    model = built(ModelConfig(vocab_size=VOCABULARY, context_length=CONTEXT, d_model=16, n_heads=2, **fields))
    steps, again = SessionDriver(model), SessionDriver(model, cached=False)
    for _ in range(12):
        tokens = torch.randint(VOCABULARY, (3, 1))
        same(steps.feed(tokens), again.feed(tokens))
    assert cuda_graph._static_steps[model] is not None


def test_leftovers_of_an_aborted_sequence_are_masked():
    """A weight of zero makes nothing of infinity."""
    model = built(drawn(0))
    steps = SessionDriver(model)
    for _ in range(6):
        steps.feed(torch.zeros(1, 1, dtype=torch.long))
    with torch.inference_mode():
        for keys, values in cuda_graph._static_steps[model]._buffers:
            keys.fill_(torch.inf)
            values.fill_(torch.nan)
    del steps
    fresh, again = SessionDriver(model), SessionDriver(model, cached=False)
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (1, 1))
        same(fresh.feed(tokens), again.feed(tokens))


def test_weights_that_change_where_they_are_count():
    model = built(drawn(2))
    for _ in range(2):
        steps, again = SessionDriver(model), SessionDriver(model, cached=False)
        for _ in range(3):
            tokens = torch.randint(VOCABULARY, (1, 1))
            same(steps.feed(tokens), again.feed(tokens))
        del steps
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert steps_recorded(model) == 1


@pytest.mark.parametrize("change", [DecoderOnly.double, quantise])
def test_moved_weights_are_detected(change):
    model = built(ModelConfig(vocab_size=VOCABULARY, context_length=CONTEXT, d_model=16, n_layers=1)).float()
    found = []
    for _ in range(2):
        steps, again = SessionDriver(model), SessionDriver(model, cached=False)
        for _ in range(3):
            tokens = torch.randint(VOCABULARY, (1, 1))
            same(steps.feed(tokens), again.feed(tokens))
        found.append(cuda_graph._static_steps[model])
        if len(found) == 1:
            change(model)
    assert found[0] is not found[1]


@pytest.mark.parametrize("change", [lambda model: model.train(), lambda model: model.requires_grad_()])
def test_a_model_that_is_being_trained_is_not_recorded(change):
    model = built(drawn(0))
    change(model)
    steps = SessionDriver(model)
    for _ in range(3):
        steps.feed(torch.zeros(1, 1, dtype=torch.long))
    assert not steps_recorded(model)


def test_steps_run_in_torch_if_recording_fails(monkeypatch, caplog):
    class Failing(Recorder):
        def __call__(self, work: Computation) -> Computation:
            work()
            raise RuntimeError("no recording\nand more")

    monkeypatch.setattr(cuda_graph, "RECORDERS", {"cpu": Failing})
    model = built(drawn(3))
    steps, again = SessionDriver(model), SessionDriver(model, cached=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            tokens = torch.randint(VOCABULARY, (2, 1))
            same(steps.feed(tokens), again.feed(tokens))
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA graphs can't be recorded here, so decode steps run without them: no recording"
    ]


def test_samples_are_the_same_whether_recorded_or_not(monkeypatch):
    tokenizer = make_tokenizer("bpe")
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_length=32, d_model=32, n_layers=2, init_std=0.3)
    model = built(config)

    def texts() -> list[list[int]]:
        generator = Generator(model, tokenizer, SamplingConfig(seed=3, max_tokens=40))
        return [sample.tokens for sample in generator.samples("The owl", n=5)]

    recorded = texts()
    assert steps_recorded(model)
    monkeypatch.setattr(cuda_graph, "RECORDERS", {})
    monkeypatch.setattr(selection, "RECORDERS", {})
    assert recorded == texts()
