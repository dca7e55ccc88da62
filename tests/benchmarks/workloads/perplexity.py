"""Perplexity by windows that overlap by half, against the strided loop that Hugging Face documents.

Source of the loop: "Perplexity of fixed-length models" in the documentation of transformers.
"""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from lm.checkpoint import load_model
from lm.config.inference import PerplexityConfig
from lm.config.run_config import HardwareConfig
from lm.hardware import select_hardware
from lm.model import DecoderOnly
from lm.model.cost import training_flops
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads.models import SHAPES
from tests.benchmarks.workloads.paths import model_path
from tests.benchmarks.workloads.timing import timer
from tests.lm.evaluation.small_models import score_document


def document_length(context: int, windows: int) -> int:
    """Return the tokens of a document of so many overlapping windows."""
    return context + (windows - 1) * (context // 2)


def lm(folder: Path, threads: int, *, shape: str, dtype: str, windows: int) -> Workload:
    """Score a document as `lm perplexity` does."""
    hardware = select_hardware(HardwareConfig("cpu", dtype, threads))
    model, context = load_model(model_path(folder, shape), hardware).model, SHAPES[shape].context_length
    assert isinstance(model, DecoderOnly)
    score = partial(
        score_document, model, _document(shape, windows)[0].numpy(), context=context, stride=context // 2,
        start_token=None, batch_size=PerplexityConfig().batch_size,
    )  # fmt: skip
    return Workload(timer(score), training_flops(SHAPES[shape], rows=windows, length=context) / 3)


def transformers(folder: Path, threads: int, *, shape: str, dtype: str, windows: int) -> Workload:
    """Score a document with Hugging Face's model, in the documented loop."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    path = model_path(folder, shape, "hugging-face")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    return Workload(timer(partial(documented_loop, model, _document(shape, windows), SHAPES[shape].context_length)))


def documented_loop(model: nn.Module, ids: Tensor, context: int) -> float:
    """Return the mean loss of (1, length) IDs, as the documentation computes it."""
    total, count, previous_end = 0.0, 0, 0
    for begin in range(0, ids.shape[1], context // 2):
        end = min(begin + context, ids.shape[1])
        inputs = ids[:, begin:end]
        targets = inputs.clone()
        targets[:, : -(end - previous_end)] = -100
        with torch.no_grad():
            loss = model(inputs, labels=targets).loss
        scored = int((targets != -100).sum()) - 1
        total, count, previous_end = total + float(loss) * scored, count + scored, end
        if end == ids.shape[1]:
            break
    return total / count


def _document(shape: str, windows: int) -> Tensor:
    length = document_length(SHAPES[shape].context_length, windows)
    return torch.randint(SHAPES[shape].vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
