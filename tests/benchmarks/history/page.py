"""What the experiment shows, as the page docs/explanation/history.md."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tests.benchmarks.history.lengths import Lengths
from tests.benchmarks.history.systems import SYSTEMS, System
from tests.benchmarks.history.translation import LENGTHS, Experiment, Result
from tests.benchmarks.report import processor_name
from tests.benchmarks.runs import lm

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window."
TRANSLATED = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster."
SHOWN = ("lstm-dot", "lstm-additive", "sinusoidal")
"""Systems whose attention to the source is drawn."""

_BEGINNING = """# What each step of the history bought

How much did each step from recurrent encoder-decoders to the Transformer bring? Each system is trained by the same
`lm train` on the same 29,000 pairs (Multi30k, English to German) for the same time. It then translates the validation
split. One command makes this page; it can be interrupted and resumed:

    python -m tests.benchmarks.history multi30k --minutes {minutes:g} --dtype {dtype}{text} \\
        --page docs/explanation/history.md

All systems share a vocabulary of 4,000 tokens, batches of 3,072 tokens, dropout 0.1 and label smoothing. The
Transformers have 3 + 3 layers of width 192. The LSTMs have one layer of width 352 on each side: with additive attention
as many parameters. LSTMs are trained by AdamW, Transformers by Muon, each at its preset's learning rate. Time is CPU
time of one thread. A short trial of each system converts it to steps. "used" is the time of the whole command,
with its start and its evaluations.
"""

_LENGTHS = """
## Longer contexts

The first table has milliseconds of a layer of self-attention, forward and backward, for one sequence by its length
(d_model 128, 4 heads, float32, one thread). `python -m tests.benchmarks.attention_patterns` measures memory and more
kinds. The second table has losses of the preset `tiny` after equal steps of 8,192 tokens each, in contexts of that
length: bits/byte of held-out text, and for encoders nats per masked token.
"""


def page(experiment: Experiment, lengths: Lengths | None, pictures: Path) -> str:
    """The page in Markdown; pictures of attention are drawn into a folder beside it."""
    results = experiment.results()
    first, seeds = results[0], " and ".join(str(seed) for seed in sorted({result.seed for result in results}))
    parts = [
        _BEGINNING.format(
            minutes=experiment.seconds / 60, dtype=experiment.dtype, text="" if lengths is None else " --text text.txt"
        ),
        f"Measured on {processor_name()}, torch {torch.__version__}, {first.dtype}, seeds {seeds};\n"
        "BLEU is sacreBLEU's, 13a and cased, of greedy translations, of each seed and their mean.\n",
        "\n".join(_table(results)),
        "\n## By the length of the source\n",
        "A decoder without attention has one vector for a whole sentence; the longer it is, the more that costs. Mean\n"
        "BLEU of the seeds, of the sentences with so many words:\n",
        "\n".join(_by_length(results)),
        "\n## Where they look\n",
        f"Attention of “{SENTENCE}” and its translation, by the\n"
        f"models of seed {first.seed}. Rows are words of the translation, columns words of the source. Weights are "
        "means over all layers\nand heads.\n",
        "\n".join(_pictures(experiment, first.seed, pictures)),
    ]
    if lengths is not None:
        parts += [_LENGTHS, "\n".join(lengths.table())]
    return "\n".join(parts) + "\n"


def _of(system: System, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.system == system.key]


def _measured(results: Sequence[Result]) -> Iterator[tuple[System, list[Result]]]:
    """The systems that were trained, in their order, with what came of them."""
    return ((system, found) for system in SYSTEMS if (found := _of(system, results)))


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "| system | | parameters (of a token) | targets/s | steps | epochs | used | BLEU | mean |"
    yield "|-|-|-|-|-|-|-|-|-|"
    for system, found in _measured(results):
        one = found[0]
        parameters = f"{one.parameters / 1e6:.2f} M"
        if one.active != one.parameters:
            parameters += f" ({one.active / 1e6:.2f} M)"
        cells = [
            system.name, system.source, parameters, f"{one.tokens_per_second:,.0f}", f"{one.steps:,}",
            f"{one.epochs:.1f}", " ".join(f"{result.seconds / 60:.1f}" for result in found) + " min",
            " ".join(f"{result.bleu:.1f}" for result in found),
            f"**{statistics.mean(result.bleu for result in found):.1f}**",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _by_length(results: Sequence[Result]) -> Iterator[str]:
    names = [f"{shortest} to {longest}" for shortest, longest in LENGTHS[:-1]]
    yield f"| words | {' | '.join(names)} | {LENGTHS[-1][0]} and more |"
    yield "|-" * (len(LENGTHS) + 1) + "|"
    for system, found in _measured(results):
        means = [statistics.mean(column) for column in zip(*(result.by_length for result in found), strict=True)]
        yield f"| {system.name} | {' | '.join(f'{mean:.1f}' for mean in means)} |"


def _pictures(experiment: Experiment, seed: int, folder: Path) -> Iterator[str]:
    """A table of one row: the same sentence, as each of the systems looks at it."""
    drawn = []
    for system in SYSTEMS:
        if system.key in SHOWN and (run := experiment.run(system, seed)).exists():
            file = folder / f"history-{system.key}.png"
            lm("attention", str(run), SENTENCE, "--target", TRANSLATED, "-o", str(file))
            drawn.append((system.name, f'<img src="{folder.name}/{file.name}" width="270">'))
    names, images = zip(*drawn, strict=True)
    yield f"| {' | '.join(names)} |"
    yield "|-" * len(drawn) + "|"
    yield f"| {' | '.join(images)} |"
