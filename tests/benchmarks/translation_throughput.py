"""Translation with beam 5 against CTranslate2: the same weights and sentences, interleaved in one process.

python -m tests.benchmarks.translation_throughput RUN SOURCE [--dtype float32] [--threads 2] [--rounds 5]
    [--sentences 1000] [--to LANG]

Each system gets the batches that suit it best, of some that are tried before: the same work, in batches of its own
size. Prints the median sentences/s of each, the median over rounds of their ratio, and how many
translations are equal. Tokenizing and detokenizing count for both. With one thread seconds are those of the processor,
which is as busy with other work as it may be.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2

from lm.checkpoint import load_model
from lm.config.decoding import TranslationConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.hardware import select_inference_hardware
from lm.interop.ctranslate2.exporting import export_ctranslate2
from lm.text.compression import read_file_lines

OUR_BATCHES = (512, 1024, 2048, 4096)  # source tokens
THEIR_BATCHES = (16, 32, 64, 128)  # sentences
BEAM, LONGEST = 5, 256

Translate = Callable[[], list[str]]
Clock = Callable[[], float]


def ours(model: TranslationModel, sources: list[str], batch_tokens: int, to: str | None) -> Translate:
    """Our translator."""
    translator = Translator([model], TranslationConfig(beam=BEAM, batch_tokens=batch_tokens), to=to)
    return lambda: [result.translations[0].text for result in translator.translate(sources)]


def theirs(
    model: TranslationModel, sources: list[str], translator: ctranslate2.Translator, batch: int, to: str | None
) -> Translate:
    """CTranslate2's, with our tokenizers."""
    reader, writer = model.source_tokenizer, model.tokenizer
    names = {index: reader.token(index) for index in range(reader.vocab_size)}
    numbers = {writer.token(index): index for index in range(writer.vocab_size)}
    tag = [] if to is None else [f"<2{to}>"]

    def translate() -> list[str]:
        encoded = [ids.tolist() for ids in reader.encode_batch([source.strip() for source in sources])]
        spelled = [[*tag, *(names[index] for index in ids)] for ids in encoded]
        results = translator.translate_batch(
            spelled, beam_size=BEAM, length_penalty=1, max_batch_size=batch, max_decoding_length=LONGEST,
            min_decoding_length=0,  # else no candidate may end at once, which frees a place in the beam
        )  # fmt: skip
        return [writer.decode([numbers[token] for token in result.hypotheses[0]]) for result in results]

    return translate


def timed(work: Translate, clock: Clock) -> tuple[float, list[str]]:
    """Seconds that some work takes, and what comes of it."""
    began = clock()
    made = work()
    return clock() - began, made


def fastest(works: list[Translate], clock: Clock) -> Translate:
    """The one that takes least, of two times each."""
    return min(works, key=lambda work: min(timed(work, clock)[0] for _ in range(2)))


def main() -> None:
    """Print medians, their ratio, and the share of equal translations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--to")
    parser.add_argument("--dtype", choices=("float32", "int8"), default="float32")
    for name, default in (("threads", 2), ("rounds", 5), ("sentences", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    hardware = select_inference_hardware(HardwareConfig(device="cpu", dtype=given.dtype, threads=given.threads))
    clock = time.process_time if given.threads == 1 else time.perf_counter
    loaded = load_model(given.run, hardware)
    model = TranslationModel.from_loaded(loaded)
    sources = [line for line in itertools.islice(read_file_lines(given.source), given.sentences) if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(given.run, Path(folder))
        layouts = {(given.threads, 1), (1, given.threads)}  # one process after another, or one a core
        translators = [
            ctranslate2.Translator(folder, compute_type=given.dtype, inter_threads=inter, intra_threads=intra)
            for inter, intra in layouts
        ]
        their = fastest(
            [theirs(model, sources, one, batch, given.to) for one in translators for batch in THEIR_BATCHES], clock
        )
        our = fastest([ours(model, sources, batch, given.to) for batch in OUR_BATCHES], clock)
        rounds = [(timed(our, clock), timed(their, clock)) for _ in range(given.rounds)]
    seconds = [(mine[0], other[0]) for mine, other in rounds]
    our_speed, their_speed = (len(sources) / statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(other / mine for mine, other in seconds)
    equal = sum(mine == other for mine, other in zip(rounds[0][0][1], rounds[0][1][1], strict=True))
    print(f"lm {our_speed:.1f} sentences/s, CTranslate2 {their_speed:.1f}, ratio {ratio:.2f}")
    print(f"equal translations: {equal} of {len(sources)} ({100 * equal / len(sources):.1f}%)")


if __name__ == "__main__":
    main()
