"""Steps that a GPU repeats give the logits that a CPU gives; what it cannot record leaves it as it was."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.engine import cuda_graph
from lm.engine.cuda_graph import CudaGraphRecorder
from lm.model.layers import quantise
from lm.model.transformer import DecoderOnly, build_model
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import assert_close

pytestmark = pytest.mark.device

VOCABULARY, CONTEXT = 257, 600


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device != "cuda":
        pytest.skip("steps are recorded on GPUs only")


def pair(**fields: object) -> tuple[DecoderOnly, DecoderOnly]:
    """The same model on a GPU and on a CPU."""
    config = ModelConfig(vocab_size=VOCABULARY, context_length=CONTEXT, d_model=64, n_layers=2, n_heads=4, **fields)
    models = [build_model(config, seed=1).eval().requires_grad_(False) for _ in range(2)]
    return models[0].cuda(), models[1]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(found.cpu(), expected, terms=64, depth=40)


@pytest.mark.parametrize(
    "fields",
    [
        *({"positions": scheme} for scheme in ("rotary", "learned", "sinusoidal", "alibi", "relative", "t5")),
        *({"positions": scheme, "attention": "window", "attention_window": 9} for scheme in ("rotary", "relative")),
        {"n_kv_heads": 2, "qk_norm": True, "value_residual": True, "softcap": 5.0},
    ],
)  # fmt: skip
def test_logits_are_those_of_a_cpu(fields):
    """Of few positions and of many, of rows that change places, and beyond the context."""
    on_gpu, on_cpu = pair(**fields)
    for length in (3, 252, 505, 595):
        steps, again = SessionDriver(on_gpu), SessionDriver(on_cpu, cached=False)
        tokens = torch.randint(VOCABULARY, (3, length))
        same(steps.feed(tokens, last_only=True), again.feed(tokens, last_only=True))
        for number in range(8):
            tokens = torch.randint(VOCABULARY, (len(tokens), 1))
            same(steps.feed(tokens), again.feed(tokens))
            if number == 4:
                for each in (steps, again):
                    each.reorder(torch.tensor([1, 0, 1, 2, 2]))
                tokens = tokens[:1].expand(5, 1)
        del steps
    recorded = cuda_graph._static_steps[on_gpu]
    assert recorded is not None
    assert recorded._recorded


def test_rows_that_come_and_go_are_those_of_a_cpu():
    on_gpu, on_cpu = pair()
    steps, again = SessionDriver(on_gpu), SessionDriver(on_cpu, cached=False)
    for prompts in ([[1, 2, 3], [4]], [[5, 6]], [[7] * 300, [8]]):
        same(steps.join(prompts), again.join(prompts))
        for _ in range(3):
            tokens = torch.randint(VOCABULARY, (len(again.session), 1))
            same(steps.feed(tokens), again.feed(tokens))
        for each in (steps, again):
            each.reorder(torch.arange(1, len(again.session)))
    assert cuda_graph._static_steps[on_gpu] is not None


@pytest.mark.parametrize("change", [DecoderOnly.bfloat16, quantise])
def test_other_types_are_recorded(change):
    models = pair()
    for model in models:
        change(model)
    steps, again = SessionDriver(models[0]), SessionDriver(models[1], cached=False)
    for _ in range(4):
        tokens = torch.randint(VOCABULARY, (2, 1))
        torch.testing.assert_close(steps.feed(tokens).cpu(), again.feed(tokens), atol=0.05, rtol=0.05)
    assert cuda_graph._static_steps[models[0]] is not None


def test_a_gpu_continues_after_what_it_could_not_record():
    x, before = torch.ones(4, device="cuda"), torch.cuda.current_stream()
    record = CudaGraphRecorder(x.device)
    with pytest.raises(RuntimeError):
        record(lambda: x * x.sum().item())
    assert torch.cuda.current_stream() == before
    assert torch.rand(4, device="cuda").isfinite().all()  # its random numbers continue too
    repeat = CudaGraphRecorder(x.device)(lambda: x * 2)
    x += 2
    assert repeat().tolist() == [6.0] * 4
