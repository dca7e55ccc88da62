"""Translation with a beam of 5, tokenisation included, against CTranslate2 with the same weights."""

from collections.abc import Callable
from pathlib import Path

from lm.api import export
from lm.checkpoint import load_model
from lm.config.inference import TranslationConfig
from lm.config.run_config import HardwareConfig
from lm.decoding.translation import TranslationModel, Translator
from lm.hardware import select_hardware
from tests.benchmarks.comparison import Workload
from tests.benchmarks.runs import lm as run_command
from tests.benchmarks.workloads.timing import timer

PAIRS = Path(__file__).parents[3] / "corpora" / "parallel"
BEAM, MAX_LENGTH = 5, 256
_OUR_BATCHES = (512, 2048, 4096)
"""Source tokens per batch; the fastest is measured."""
_THEIR_BATCHES = (16, 64)
"""Sentences per batch; the fastest is measured."""


def prepare(folder: Path, *, flags: tuple[str, ...]) -> None:
    """Train a model on the pairs that ship with `lm`, so that translations end, and export it."""
    run = folder / "translation-run"
    if run.exists():
        return
    sides = ("--source", str(PAIRS / "train.en"), "--target", str(PAIRS / "train.de"))
    run_command("train", *sides, *flags, "--seed", "1", "-o", str(run))
    export(run, folder / "translation-ctranslate2", "ctranslate2")


def lm(folder: Path, threads: int, *, dtype: str, sentences: int) -> Workload:
    """Translate as `lm translate` does."""
    model, sources = _load(folder, threads, dtype), _sources(sentences)

    def translating(batch_tokens: int) -> Callable[[], object]:
        translator = Translator(model, TranslationConfig(beam=BEAM, batch_tokens=batch_tokens))
        return lambda: list(translator.translate(sources))

    return Workload(_fastest([translating(batch) for batch in _OUR_BATCHES]))


def ctranslate2(folder: Path, threads: int, *, dtype: str, sentences: int) -> Workload:
    """Translate with CTranslate2, with one process of several threads, or one per core."""
    import ctranslate2 as package

    model, sources = _load(folder, threads, dtype), _sources(sentences)
    reader, writer = model.source_tokenizer, model.tokenizer
    names = {index: reader.token(index) for index in range(reader.vocab_size)}
    numbers = {writer.token(index): index for index in range(writer.vocab_size)}

    def translating(translator: package.Translator, batch: int) -> Callable[[], object]:
        def translate() -> list[str]:
            spelled = [[names[index] for index in ids.tolist()] for ids in reader.encode_batch(sources)]
            results = translator.translate_batch(
                spelled, beam_size=BEAM, length_penalty=1, max_batch_size=batch, max_decoding_length=MAX_LENGTH,
                min_decoding_length=0,  # as ours, which may end at once
            )  # fmt: skip
            return [writer.decode([numbers[token] for token in result.hypotheses[0]]) for result in results]

        return translate

    translators = [
        package.Translator(
            str(folder / "translation-ctranslate2"), compute_type=dtype, inter_threads=inter, intra_threads=intra
        )
        for inter, intra in {(1, threads), (threads, 1)}
    ]
    return Workload(_fastest([translating(each, batch) for each in translators for batch in _THEIR_BATCHES]))


def _load(folder: Path, threads: int, dtype: str) -> TranslationModel:
    hardware = select_hardware(HardwareConfig("cpu", dtype, threads))
    return TranslationModel.from_loaded(load_model(folder / "translation-run", hardware))


def _sources(sentences: int) -> list[str]:
    return (PAIRS / "heldout.en").read_text(encoding="utf-8").splitlines()[:sentences]


def _fastest(works: list[Callable[[], object]]) -> Callable[[], float]:
    """Return the timer of what takes the least time, after a warm-up."""
    timers = [timer(work) for work in works]
    for each in timers:
        each()
    return min(timers, key=lambda each: each())
