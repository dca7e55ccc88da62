"""`lm translate`: translate lines of text."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion
from cli.arguments import STDIN, read_input_lines
from cli.loading import RunPath, import_torch
from cli.new_runs import suggest_compiling
from cli.options import Options, with_settings
from lm.config.decoding import PENALTIES, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.config.run_spec import refuse_settings
from lm.files import atomic_write_text
from lm.run_folder import find_checkpoint, load_config
from lm.text.decode import read_file_lines

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.decoding.translation import Translator
    from lm.evaluation.attention import AttentionMap
    from lm.text.dependency_trees import DependencyHeads

_Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="Text to translate, line by line. [default: stdin]")
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="File of the translations.")]
_Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="Further run, to average probabilities. Repeatable.",
        autocompletion=completion.complete_runs,
    ),
]
_To = Annotated[str | None, typer.Option(metavar="LANGUAGE", help="Target language, for a run with several.")]
_Prefix = Annotated[str | None, typer.Option(metavar="TEXT", help="Start of each translation.")]
_PrefixFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Start of the translation of each line.")]
_Heads = Annotated[
    list[Path] | None,
    typer.Option("--dependency-heads", metavar="FILE", help="Dependency trees of the lines. Repeatable."),
]
_Sample = Annotated[bool, typer.Option("--sample", help="Sample, instead of beam search.")]
_Attention = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Cross-attention: .html, .png, .svg, .jsonl or .pharaoh.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines: source, translations (text, score, …).")]


@with_settings(
    {
        "translation": TranslationConfig,
        "sampling": SamplingConfig,
        "attention": AttentionConfig,
        "hardware": HardwareConfig,
        "workers": WorkersConfig,
    },
    "beam n_best length_penalty coverage_penalty max_length_ratio batch_tokens temperature top_k top_p seed "
    "layer head unit processes device dtype threads",
    common="--out --to --beam --n-best --length-penalty --sample --temperature --seed --ensemble --attention --json",
)
def translate(
    run: RunPath,
    files: _Files = None,
    *,
    out: _Out = None,
    to: _To = None,
    ensemble: _Ensemble = None,
    prefix: _Prefix = None,
    prefix_file: _PrefixFile = None,
    heads: _Heads = None,
    sample: _Sample = False,
    attention: _Attention = None,
    as_json: _AsJson = False,
    options: Options,
) -> None:
    """Translate text line by line.

    Line n of the output is the translation of line n. A line holds a sentence, or whatever the lines of the training
    data held; a blank one stays blank. With --n-best N each line has N lines of output. At a terminal each line is
    translated at once; otherwise lines are read ahead and sorted by length for batching.

    With --sample and a seed, sample i of a line doesn't depend on other lines; equal lines have different samples.

    Penalties and biases under Sampling apply to beam search too: they change the model's logits, and so the score.

    Examples:
      lm translate runs/en-de < news.en > news.de
      lm translate runs/en-de news.en --attention news.html > news.de
      lm translate runs/en-de news.en -o news.de --beam 8 --length-penalty 0.6
      lm translate runs/en-de --ensemble runs/en-de-2 < news.en > news.de
      lm translate runs/en-de --n-best 3 --json < news.en | jq .translations
      lm translate runs/both --to de --sample --top-p 0.9 --seed 1 < news.en
    """
    if not sample:
        refuse_settings("sampling", options.typed("sampling").keys() - set(PENALTIES), beside="beam search")
    import_torch()
    from cli.attention import check_output_path, write_maps
    from cli.console.progress import show_counter
    from cli.console.text import escape_for_stream, format_json_line, print_note
    from lm.hardware import select_device

    if attention is not None:
        check_output_path(attention)
    is_typed = not files and sys.stdin.isatty()
    suggest_compiling(load_config(find_checkpoint(run)).model, select_device(options.build(HardwareConfig)))
    rest = itertools.repeat("" if prefix_file else prefix or "")
    prefixes, of_lines = itertools.tee(itertools.chain(read_file_lines(prefix_file), rest) if prefix_file else rest)
    translated: list[tuple[str, Any]] = []
    with (
        _open_translator([run, *(ensemble or ())], options, to=to, sample=sample, is_typed=is_typed) as translator,
        atomic_write_text(out) if out is not None else nullcontext(sys.stdout) as stream,
        nullcontext() if is_typed else show_counter("translating", "lines") as count,
    ):
        if is_typed:
            print_note("type a line to have it translated; Ctrl-D ends")
        lines, trees = _read_lines_with_heads(files or [STDIN], heads)
        has_prefixes = prefix is not None or prefix_file is not None
        results = translator.translate(lines, prefixes=prefixes if has_prefixes else None, dependency_heads=trees)
        try:
            for number, (result, start) in enumerate(zip(results, of_lines, strict=False), 1):
                if result.left_out:
                    print_note(
                        f"line {number} is too long for the model: its last {result.left_out} tokens are not read"
                    )
                if as_json:
                    translations = [dataclasses.asdict(translation) for translation in result.translations]
                    values = {"line": number, "source": result.source, "translations": translations}
                    print(format_json_line(values), file=stream)
                else:
                    texts = [translation.text for translation in result.translations]
                    blank = [""] * (translator.config.n_best - len(texts))
                    stream.writelines(escape_for_stream(text, stream) + "\n" for text in [*texts, *blank])
                if out is None:
                    stream.flush()
                if attention is not None:
                    translated.append((start, result))
                if count:
                    count(number)
        except KeyboardInterrupt:
            raise typer.Abort from None
    if attention is not None:
        from lm.engine.fastest_dtype import load_for_decoding

        config, loaded = options.build(AttentionConfig), load_for_decoding(run, options.build(HardwareConfig))
        write_maps(attention, _compute_maps(loaded, translated, config, to), config)


def _read_lines_with_heads(
    files: Sequence[Path], heads: Sequence[Path] | None
) -> tuple[Iterator[str], Iterator[DependencyHeads] | None]:
    """Read the lines of files or stdin, and the dependency heads of their words, from one file each."""
    if not heads:
        return read_input_lines(files), None
    from lm.text.dependency_trees import attach_heads

    parsed = itertools.chain.from_iterable(
        attach_heads(read_input_lines([file]), read_file_lines(own), sentence=str, names=(str(file), str(own)))
        for file, own in zip(files, heads, strict=True)
    )
    lines, trees = itertools.tee(parsed)
    return (line for line, _ in lines), (tree for _, tree in trees)


@contextmanager
def _open_translator(
    runs: Sequence[Path], options: Options, *, to: str | None, sample: bool, is_typed: bool
) -> Iterator[Translator]:
    """Load a translator that uses as many processes as configured."""
    from lm.decoding.sampling import Sampler
    from lm.hardware import divide_threads
    from lm.processes import open_process_map

    processes = options.build(WorkersConfig).processes
    load = partial(_load_translator, tuple(runs), to=to, sample=sample, is_typed=is_typed)
    if processes == 1:
        yield load(options)
        return
    threads = divide_threads(options.build(HardwareConfig), processes).threads
    seed = Sampler.from_config(options.build(SamplingConfig)).seed  # the same in all processes
    options = options.with_values("hardware", threads=threads).with_values("sampling", seed=seed)
    with open_process_map(partial(_load_worker, load, options), processes) as parallel_map:
        yield load(options, parallel_map=parallel_map)


def _load_translator(
    runs: Sequence[Path], options: Options, *, to: str | None, sample: bool, is_typed: bool, parallel_map: Any = None
) -> Translator:
    """Load a run, or an ensemble of runs; what is typed is translated line by line."""
    from lm.decoding.sampling import Sampler, parse_logit_biases
    from lm.decoding.translation import Translator
    from lm.decoding.translation_input import TranslationModel
    from lm.engine.fastest_dtype import load_for_decoding

    config = options.build(TranslationConfig, **({"read_ahead": 1} if is_typed else {}))
    sampling, hardware = options.build(SamplingConfig), options.build(HardwareConfig)
    models = [TranslationModel.from_loaded(load_for_decoding(run, hardware)) for run in runs]
    biases = parse_logit_biases(sampling.logit_bias, models[0].tokenizer)
    sampler = Sampler.from_config(sampling if sample else sampling.replace(temperature=0.0), biases)
    return Translator(models, config, sampler=sampler, to=to, parallel_map=parallel_map)


def _load_worker(load: Callable[[Options], Translator], options: Options) -> Callable[[Any], Any]:
    """Load the function with which a worker process translates batches."""
    return load(options).translate_batch


def _compute_maps(
    loaded: LoadedModel, translated: Iterable[tuple[str, Any]], config: AttentionConfig, to: str | None
) -> Iterator[AttentionMap]:
    """Yield the map of each line, of blank ones too, and its best translation."""
    from lm.evaluation.attention import compute_attention

    for prefix, line in translated:
        best = line.translations[0].tokens
        yield compute_attention(
            loaded, line.source, [*loaded.tokenizer.encode(prefix), *best] if best else [], unit=config.unit, to=to,
            dependency_heads=None if loaded.config.model.syntax == "none" else line.heads,
        )  # fmt: skip
