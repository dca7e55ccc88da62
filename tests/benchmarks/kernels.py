"""What the choice of a kernel costs where it is wrong: ours against the others that would do, alternating.

    python -m tests.benchmarks.kernels [--threads 1] [--seconds 0.5]

For products without a gradient, attention, dropout and the loss of an output layer, at shapes of training and decoding,
in each type that the processor multiplies natively: milliseconds of what `lm` takes and of each other way, and how many
times as long ours takes as the quickest. Attention and dropout go forward and back where they train.
"""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.hardware import Hardware, native_dtypes, time_work
from lm.model import attention
from lm.model.cpu_kernels import linear, onednn_linear
from lm.model.layers import dropout
from lm.model.loss import linear_cross_entropy
from lm.model.mask import Mask
from lm.training.step_timing import time_interleaved

Ways = dict[str, Callable[[], object]]
PRODUCTS = ((16, 160, 480), (64, 128, 512), (160, 160, 480), (256, 384, 1536), (1024, 768, 3072))
TRAINED = ((16, 4, 128, 32), (8, 6, 256, 64), (64, 4, 24, 40), (2, 12, 1024, 64))  # rows, heads, positions, head
DECODED = ((80, 4, 1, 24, 40), (80, 4, 5, 24, 40), (16, 6, 1, 200, 64))  # rows, heads, queries, keys, head
LOSSES = ((2048, 128, 1024), (4096, 256, 4096), (2048, 160, 4000), (512, 768, 50257))


@contextlib.contextmanager
def forced(by_products: bool) -> Iterator[None]:
    """Attention by two products, or by torch's fused kernel, whatever would be chosen."""
    chosen = attention.matmuls_are_faster
    attention.matmuls_are_faster = lambda *_: by_products
    try:
        yield
    finally:
        attention.matmuls_are_faster = chosen


def products() -> Iterator[tuple[str, Ways]]:
    """Without a gradient, in float32."""
    for rows, inputs, outputs in PRODUCTS:
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        ways = {"ours": linear, "MKL": F.linear, "oneDNN": partial(onednn_linear, bias=None)}
        yield f"{rows} x {inputs} by {outputs}", {name: partial(way, x, weight) for name, way in ways.items()}


def attentions(dtype: torch.dtype) -> Iterator[tuple[str, Ways]]:
    """Causal and trained, with and without dropout; and decoded in float32."""
    for shape in TRAINED:
        parts = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
        for rate in (0.0, 0.1):
            work = partial(_trained_attention, parts, rate)
            others = {} if rate else {"fused": partial(_by, False, work)}
            yield (
                f"{'x'.join(map(str, shape))}, dropout {rate}",
                {"ours": work, "products": partial(_by, True, work), **others},
            )
    if dtype is torch.float32:
        for rows, heads, queries, keys, head in DECODED:
            query = torch.randn(rows, heads, queries, head)
            key, value = (torch.randn(rows, heads, keys, head) for _ in range(2))
            work = partial(attention.attend, query, key, value, mask=Mask.key_padding(None))
            ways = {"ours": work, "products": partial(_by, True, work), "fused": partial(_by, False, work)}
            yield f"{rows}x{heads}, {queries} queries, {keys} keys of {head}", ways


def _by(by_products: bool, work: Callable[[], object]) -> None:
    with forced(by_products):
        work()


def _trained_attention(parts: list[Tensor], rate: float) -> None:
    attention.attend(*parts, mask=Mask.causal(), dropout=rate).sum().backward()


def dropouts(dtype: torch.dtype) -> Iterator[tuple[str, Ways]]:
    """Of the states of a batch."""
    for rows, width in ((2048, 128), (4096, 512)):
        x = torch.randn(rows, width, dtype=dtype, requires_grad=True)
        ways = {
            "ours": lambda x=x: dropout(x, 0.1).sum().backward(),
            "torch": lambda x=x: F.dropout(x, 0.1).sum().backward(),
        }
        yield f"{rows} x {width}", ways


def losses(dtype: torch.dtype) -> Iterator[tuple[str, Ways]]:
    """Forward and back, from float32 states."""
    for rows, width, vocabulary in LOSSES:
        hidden = torch.randn(rows, width, requires_grad=True)
        weight = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
        targets = torch.randint(vocabulary, (rows,))

        def ours(hidden: Tensor = hidden, weight: Tensor = weight, targets: Tensor = targets) -> None:
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                loss, _ = linear_cross_entropy(hidden, weight, targets)
            loss.backward()

        def plain(hidden: Tensor = hidden, weight: Tensor = weight, targets: Tensor = targets) -> None:
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                logits = F.linear(hidden, weight)
            F.cross_entropy(logits.float(), targets, reduction="sum").backward()

        yield f"{rows} x {width}, vocabulary {vocabulary}", {"ours": ours, "torch": plain}


def show(what: str, found: Iterator[tuple[str, Ways]], *, seconds: float, hardware: Hardware) -> None:
    """A line for each shape."""
    for shape, ways in found:
        rounds = time_interleaved([partial(time_work, way, hardware) for way in ways.values()], seconds=seconds)
        medians = [1000 * statistics.median(column) for column in zip(*rounds, strict=True)]
        taken = ", ".join(f"{name} {each:.2f}" for name, each in zip(ways, medians, strict=True))
        print(f"{what}, {shape}: {taken} ms; {medians[0] / min(medians[1:]):.2f}", flush=True)


def main() -> None:
    """Kernel by kernel, type by type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each way at each shape")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    hardware = Hardware("cpu", "float32", arguments.threads)
    with torch.no_grad():
        show("product", products(), seconds=arguments.seconds, hardware=hardware)
    for name in native_dtypes("cpu"):
        dtype = getattr(torch, name)
        for what, kind in (("attention", attentions), ("dropout", dropouts), ("loss", losses)):
            show(f"{what} in {name}", kind(dtype), seconds=arguments.seconds, hardware=hardware)


if __name__ == "__main__":
    main()
