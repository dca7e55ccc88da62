"""`lm translate`: translate lines of text."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from cli.console.escapes import for_stream, json_line
from cli.flags import completion
from cli.flags.loading import RunPath
from cli.flags.options import Given, takes
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig
from lm.config.options import check_text, options
from lm.errors import UsageError
from lm.files import replaced

if TYPE_CHECKING:
    from cli.attention.files import Maps
    from lm.decoding.sampling import Sampler
    from lm.decoding.translation import Translated, Translator
    from lm.tokenizer.tokenizer import Tokenizer

INTERRUPTED = 130

_SECONDS_BETWEEN_NOTES = 10
_BLOCK_BYTES = 1 << 16
_STDIN = Path("-")

_IN_A_SEARCH = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram", "logit_bias")

_Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="What to translate, line by line [default: stdin].", show_default=False),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Write the translations here.", show_default=False),
]
_Ensemble = Annotated[
    list[Path],
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="A run or checkpoint that decides as well, by the mean of probabilities; can be repeated.",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
_To = Annotated[
    str | None,
    typer.Option(metavar="LANGUAGE", help="The target language, of a run that has several.", show_default=False),
]
_Prefix = Annotated[str | None, typer.Option(metavar="TEXT", help="How each translation begins.", show_default=False)]
_PrefixFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="How the translation of each line begins, line by line; blank: open.", show_default=False
    ),
]
_Sample = Annotated[bool, typer.Option("--sample", help="Draw translations, with the flags under Sampling.")]
_Attention = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write where the words of each translation look in its source: .html (all layers and heads), .png or .svg "
        "(a picture a line; they need matplotlib), .txt, .jsonl, or .pharaoh (alignments alone).",
        show_default=False,
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a line of JSON a line: line, source, translations (text, tokens, logprobs, score, finish_reason).",
    ),
]


@takes(
    {
        "translation": TranslationConfig,
        "sampling": SamplingConfig,
        "attention": AttentionConfig,
        "hardware": HardwareConfig,
    },
    leave_out=("stop", "max_tokens"),
)
def translate(
    run: RunPath,
    files: _Files = None,
    *,
    out: _Out = None,
    to: _To = None,
    ensemble: _Ensemble = [],  # noqa: B006 (typer's way to say: none)
    prefix: _Prefix = None,
    prefix_file: _PrefixFile = None,
    sample: _Sample = False,
    attention: _Attention = None,
    as_json: _AsJson = False,
    given: Given,
) -> None:
    """Translate text line by line: line n out is the translation of line n in.

    A line is a sentence, as the run was trained; a blank one stays blank. With --n-best N each line has N lines of
    output. Typed into, it answers line by line; else lines are read ahead and sorted, so that batches have one length.

    Penalties and biases under Sampling count in the search too: they change the model's logits, and so the score.

    Examples:
      lm translate runs/en-de < news.en > news.de
      lm translate runs/en-de news.en --attention news.html > news.de
      lm translate runs/en-de news.en -o news.de --beam 8 --length-penalty 0.6
      lm translate runs/en-de --ensemble runs/en-de-2 < news.en > news.de
      lm translate runs/en-de --n-best 3 --json < news.en | jq .translations
      lm translate runs/both --to de --sample --top-p 0.9 --seed 1 < news.en
    """
    _check(given, sample=sample)
    if prefix is not None and prefix_file is not None:
        raise UsageError("give either --prefix or --prefix-file")
    if prefix is not None:
        check_text(prefix, name="prefix", flag="--prefix")
    maps = _maps(attention, given, prefix=prefix, has_prefixes=prefix_file is not None)
    typed = not files and sys.stdin.isatty()
    translator = _translator(given, [run, *ensemble], to=to, sample=sample, typed=typed)
    results = translator.translate(_lines(files or []), prefixes=_prefixes(prefix, prefix_file))
    with replaced(out) if out is not None else nullcontext(sys.stdout) as stream:
        try:
            for number, result in enumerate(_watched(results, shown=not typed), 1):
                _write(stream, number, result, translator.config.n_best, as_json=as_json)
                if maps is not None:
                    maps.add(result)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if maps is not None:
        maps.write(translator.models[0], to=to)


def _maps(path: Path | None, given: Given, *, prefix: str | None, has_prefixes: bool) -> Maps | None:
    """Where to keep what attention maps are to be made of, if they are."""
    if path is None:
        return None
    if has_prefixes:
        raise UsageError("--attention goes with one --prefix for all lines, not with --prefix-file")
    from cli.attention.files import Maps

    return Maps(path, AttentionConfig(**given["attention"]), prefix or "")


def _check(given: Given, *, sample: bool) -> None:
    """Refuse flags that have no meaning together."""
    flags = {described.name: described.flag for described in options(SamplingConfig)}
    drawing = [flags[name] for name in given.typed["sampling"] if name not in _IN_A_SEARCH and name != "greedy"]
    if drawing and not sample:
        raise UsageError(f"a search draws nothing and has no use for {', '.join(drawing)}; --sample does")
    if sample:
        flags = {described.name: described.flag for described in options(TranslationConfig)}
        searching = ("beam", "length_penalty", "coverage_penalty")
        unfit = [flags[name] for name in searching if name in given.typed["translation"]]
        if given.typed["sampling"].get("greedy"):
            unfit.append("--greedy")
        if unfit:
            raise UsageError(f"--sample draws translations and has no use for {', '.join(unfit)}")


def _translator(given: Given, runs: Sequence[Path], *, to: str | None, sample: bool, typed: bool) -> Translator:
    from lm.checkpoint import load_model
    from lm.decoding.translation import Translator
    from lm.decoding.translation_input import TranslationModel
    from lm.hardware import inference_hardware

    config = TranslationConfig(**({"read_ahead": 1} if typed else {}) | given["translation"])
    drawing = SamplingConfig(**given["sampling"])
    if drawing.greedy and not sample:
        config = dataclasses.replace(config, beam=1)
    hardware = inference_hardware(HardwareConfig(**given["hardware"]))
    models = [TranslationModel.of(load_model(run, hardware)) for run in runs]
    sampler = _sampler(dataclasses.replace(drawing, greedy=not sample), models[0].tokenizer)
    if typed:
        from cli.console.messages import note

        note("type a line to have it translated; Ctrl-D ends")
    return Translator(models, config, sampler=sampler, to=to)


def _sampler(config: SamplingConfig, tokenizer: Tokenizer) -> Sampler:
    from lm.decoding.logit_bias import read_biases
    from lm.decoding.sampling import Sampler

    return Sampler.of(config, read_biases(config.logit_bias, tokenizer))


def _lines(files: Sequence[Path]) -> Iterator[str]:
    """The lines of some files after one another, or of stdin, each as soon as it is there."""
    from lm.text.lines import file_lines, lines

    stdin: Any = sys.stdin.buffer
    for file in files or [_STDIN]:
        if file == _STDIN:
            yield from lines(iter(lambda: stdin.read1(_BLOCK_BYTES), b""), name="stdin")
        else:
            yield from file_lines(file)


def _prefixes(prefix: str | None, file: Path | None) -> Iterable[str] | None:
    if file is not None:
        from lm.text.lines import file_lines

        return file_lines(file)
    return None if prefix is None else itertools.repeat(prefix)


def _write(stream: IO[str], number: int, result: Translated, n: int, *, as_json: bool) -> None:
    if result.left_out:
        from cli.console.messages import note

        note(f"line {number}: its last {result.left_out} tokens were not read: the model's positions end")
    if as_json:
        translations = [dataclasses.asdict(one) for one in result.translations]
        print(json_line({"line": number, "source": result.source, "translations": translations}), file=stream)
    else:
        texts = [one.text for one in result.translations]
        stream.writelines(for_stream(text, stream) + "\n" for text in [*texts, *[""] * (n - len(texts))])
    if stream is sys.stdout:
        stream.flush()


def _watched(results: Iterable[Translated], *, shown: bool) -> Iterator[Translated]:
    """The same results, while their number and speed are on stderr: as a bar there, or as a line now and then."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from cli.console.messages import note
    from cli.console.numbers import duration
    from cli.console.progress import progress_console

    console = progress_console()
    drawn = shown and console.is_terminal and not sys.stdout.isatty()
    began = noted = time.perf_counter()
    number = 0
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} lines"), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, console=console, transient=True, disable=not drawn) as bar:
        task = bar.add_task("", total=None, speed="")
        for number, result in enumerate(results, 1):
            yield result
            now = time.perf_counter()
            speed = f"{number / (now - began):.1f} lines/s"
            bar.update(task, completed=number, speed=speed)
            if shown and not drawn and now - noted > _SECONDS_BETWEEN_NOTES:
                noted = now
                note(f"{number:,} lines, {speed}")
    if shown and number and (drawn or noted > began):
        note(f"{number:,} lines in {duration(time.perf_counter() - began)}, {speed}")
