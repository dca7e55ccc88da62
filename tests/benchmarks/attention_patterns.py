"""What attention patterns cost against the length of a sequence: time and memory, forward and backward.

    python -m tests.benchmarks.attention_patterns [--lengths 256 512 …] [--d-model 128] [--heads 4] [--dropout 0.0]
        [--positions none] [--layers 5] [--kinds full window …] [--seconds 2] [--threads 1]

Five layers of self-attention with their projections, one after the other, since compressed attention alternates
between two kinds (local, compressed, local, compressed, local); all is given for one layer. Causal but for those of an
encoder. All kinds and lengths take turns in one process for their times, which are those of the processor, whatever
else it does meanwhile; ratios to full attention, and to half the length, are the medians of the rounds'. Memory is by
how much the peak of a fresh process grows while it goes forward and back once, after a warm-up that is short.

What `full` is depends on the rest: without dropout and biases by distance, torch's fused kernel, which never holds a
score for each pair of positions; with either, the two products written out, or the fused kernel given all biases.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.mask import Mask
from lm.model.module import initialise
from lm.model.positions import build_relative_positions
from lm.model.transformer import build_self_attention
from lm.model.variants.block_sparse import compute_in_chunks
from lm.training.step_timing import time_interleaved
from tests.benchmarks.comparison import peak_memory
from tests.benchmarks.workloads.timing import timer

KINDS = {
    "full": {}, "window": {"attention": "window"}, "bigbird": {"attention": "bigbird"},
    "compressed": {"attention": "compressed"}, "compressed by 12": {"attention": "compressed", "attention_stride": 12},
    "full, encoder": {"n_encoder_layers": 1}, "linformer, encoder": {"attention": "linformer", "n_encoder_layers": 1},
}  # fmt: skip
"""What is compared, with what differs from the default of the configuration."""
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Setting:
    """What is the same for all kinds: the shape of a layer and what is dropped, on a CPU in float32.

    There are as many layers as compressed attention was published with, of which two are compressed and three local.
    """

    d_model: int = 128
    heads: int = 4
    dropout: float = 0.0
    positions: str = "none"
    threads: int = 1
    layers: int = 5


@dataclass(frozen=True)
class Cost:
    """What one layer of a kind costs, forward and backward.

    Attributes:
        kind: of `KINDS`.
        length: positions of the sequence.
        seconds: of the processor, by all threads, the median of the rounds.
        to_full: seconds in relation to full attention of the same stack, the median of the rounds' ratios.
        to_half: the same in relation to half the length; None if that was not measured.
        bytes: by how much the peak of a fresh process grew.
    """

    kind: str
    length: int
    seconds: float
    to_full: float
    to_half: float | None
    bytes: int


def costs(lengths: Sequence[int], kinds: Sequence[str], setting: Setting, *, seconds: float = 2.0) -> list[Cost]:
    """What each kind costs at each length; what `full` costs is measured with them.

    Args:
        lengths: positions of the one sequence.
        kinds: of `KINDS`.
        setting: shape, dropout, positions, threads.
        seconds: to be spent on the time of each kind at each length, about.

    Returns:
        By length, and at each length by kind, in the order given.
    """
    torch.set_num_threads(setting.threads)
    measured = list(dict.fromkeys([*(_full(kind) for kind in kinds), *kinds]))
    sides = [(kind, length) for length in lengths for kind in measured]
    rounds = time_interleaved(
        [timer(pass_of(*side, setting), clock=time.process_time) for side in sides], seconds=seconds
    )
    times = dict(zip(sides, zip(*rounds, strict=True), strict=True))
    found = []
    for length in lengths:
        for kind in kinds:
            own, half = times[kind, length], times.get((kind, length // 2))
            found.append(
                Cost(
                    kind, length, statistics.median(own) / setting.layers,
                    to_full=_ratio(own, times[_full(kind), length]),
                    to_half=None if half is None else _ratio(own, half),
                    bytes=growth(kind, length, setting),
                )
            )  # fmt: skip
    return found


def _ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(some, others, strict=True))


def _full(kind: str) -> str:
    return "full, encoder" if kind.endswith("encoder") else "full"


def pass_of(kind: str, length: int, setting: Setting) -> Callable[[], None]:
    """Goes forward and back once through the layers of a kind."""
    is_causal = not kind.endswith("encoder")
    config = ModelConfig(
        context_length=length, d_model=setting.d_model, n_heads=setting.heads, n_layers=setting.layers,
        positions=setting.positions, dropout=setting.dropout, **KINDS[kind],
    )  # fmt: skip
    layers = torch.nn.ModuleList(
        build_self_attention(config, layer=layer, is_causal=is_causal) for layer in range(setting.layers)
    )
    positions = build_relative_positions(config, setting.layers, is_causal=is_causal)
    initialise(layers)
    if positions is not None:
        initialise(positions)
    x, gradient = (torch.randn(1, length, setting.d_model) for _ in range(2))

    def forward_and_back() -> None:
        inputs, state = AttentionInputs(Mask(is_causal=is_causal)), x
        if positions is not None:
            inputs = positions(inputs, length, x.device)
        for layer in layers:
            state = state + layer(state, inputs)
        state.backward(gradient)

    return forward_and_back


def growth(kind: str, length: int, setting: Setting) -> int:
    """Bytes by which the peak of a fresh process grows while it goes forward and back once."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else "tests.benchmarks.attention_patterns"]
    asked = json.dumps({"kind": kind, "length": length, **asdict(setting)})
    done = subprocess.run([*command, "--growth", asked], capture_output=True, text=True, check=True)
    return int(done.stdout) // setting.layers


def _print_growth(asked: str) -> None:
    """What a process that measures nothing but its own memory does."""
    fields = json.loads(asked)
    kind, length = fields.pop("kind"), fields.pop("length")
    setting = Setting(**fields)
    torch.set_num_threads(setting.threads)
    work = pass_of(kind, length, setting)
    _warm_up(kind, setting)
    with suppress(OSError):  # the peak from here on; where there is no such file, the peak so far is less to go from
        Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    work()
    print(peak_memory() - before)


def _warm_up(kind: str, setting: Setting) -> None:
    """What torch loads when it first does such things stays out of the account."""
    pass_of(kind, 600, replace(setting, d_model=8, heads=1))()
    x = torch.zeros(1, 1, 2, 1, requires_grad=True)
    compute_in_chunks(lambda first, end: 2 * x[:, :, first:end], [(0, 1), (1, 2)], is_random=True).sum().backward()


def report(found: Sequence[Cost]) -> None:
    """A row for each of the costs, and beside each figure what it is to full attention's, or to half the length's."""
    bytes_of = {(cost.kind, cost.length): cost.bytes for cost in found}
    print("| length | attention | ms | to full | to half the length | MB | to full |\n|-|-|-|-|-|-|-|")
    for cost in found:
        full = bytes_of.get((_full(cost.kind), cost.length))
        growth, ratio = ("" if each is None else f"{each:.2f}" for each in (cost.to_half, full and cost.bytes / full))
        print(f"| {cost.length:,} | {cost.kind} | {1000 * cost.seconds:.1f} | {cost.to_full:.2f} | {growth} |", end=" ")
        print(f"{cost.bytes / 1e6:.0f} | {ratio} |")


def main() -> None:
    """Measure each kind at each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--d-model", type=int, default=Setting.d_model)
    parser.add_argument("--heads", type=int, default=Setting.heads)
    parser.add_argument("--dropout", type=float, default=Setting.dropout)
    parser.add_argument("--positions", default=Setting.positions)
    parser.add_argument("--layers", type=int, default=Setting.layers)
    parser.add_argument("--threads", type=int, default=Setting.threads)
    parser.add_argument("--seconds", type=float, default=2.0, help="for the time of each kind at each length, about")
    parser.add_argument("--growth", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.growth:
        _print_growth(arguments.growth)
        return
    setting = Setting(
        arguments.d_model, arguments.heads, arguments.dropout, arguments.positions, arguments.threads, arguments.layers
    )
    print(f"float32 on cpu, {setting.threads} threads, one sequence, d_model {setting.d_model}, {setting.heads} heads,")
    print(f"{setting.layers} layers, dropout {setting.dropout}, positions {setting.positions}, torch", end=" ")
    print(torch.__version__ + "\n")
    report(costs(arguments.lengths, arguments.kinds, setting, seconds=arguments.seconds))


if __name__ == "__main__":
    main()
