"""`lm translate`: translate lines of text."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from cli import completion
from cli.arguments import read_input_lines
from cli.loading import RunPath, import_torch
from cli.new_runs import suggest_compiling
from cli.options import Options, with_settings
from lm.config.decoding import PENALTIES, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.config.run_spec import refuse_settings
from lm.errors import UsageError
from lm.files import atomic_write_text

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
    Path | None, typer.Option(metavar="FILE", help="Cross-attention: .html, .png, .svg, .txt, .jsonl or .pharaoh.")
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
    if sample:
        searching = options.typed("translation").keys() & {"beam", "length_penalty", "coverage_penalty"}
        refuse_settings("translation", searching, beside="--sample")
    else:
        refuse_settings("sampling", options.typed("sampling").keys() - set(PENALTIES), beside="beam search")
    _check_prefixes(prefix, prefix_file, has_maps=attention is not None)
    import_torch()
    from cli.attention.output import AttentionMapWriter
    from cli.console.text import print_note
    from cli.translation.line_io import (
        read_lines_with_heads,
        read_prefixes,
        warn_of_tabs,
        with_progress,
        write_translations,
    )
    from cli.translation.loading import open_translator
    from lm.hardware import select_device
    from lm.run_folder import find_checkpoint, load_config

    maps = None if attention is None else AttentionMapWriter(attention, options.build(AttentionConfig), prefix or "")
    is_typed = not files and sys.stdin.isatty()
    suggest_compiling(load_config(find_checkpoint(run)).model, select_device(options.build(HardwareConfig)))
    with (
        open_translator([run, *(ensemble or ())], options, to=to, sample=sample, line_by_line=is_typed) as translator,
        atomic_write_text(out) if out is not None else nullcontext(sys.stdout) as stream,
    ):
        if is_typed:
            print_note("type a line to have it translated; Ctrl-D ends")
        lines, trees = read_lines_with_heads(files or [], heads) if heads else (read_input_lines(files or []), None)
        results = translator.translate(
            warn_of_tabs(lines), prefixes=read_prefixes(prefix, prefix_file), dependency_heads=trees
        )
        try:
            for number, result in enumerate(with_progress(results, shown=not is_typed), 1):
                write_translations(stream, number, result, n_best=translator.config.n_best, as_json=as_json)
                if maps is not None:
                    maps.add(result)
        except KeyboardInterrupt:
            raise typer.Abort from None
    if maps is not None:
        maps.write(translator.models[0], to=to)


def _check_prefixes(prefix: str | None, file: Path | None, *, has_maps: bool) -> None:
    """Raise UsageError unless prefixes are given in one way, which attention maps support."""
    if prefix is not None and file is not None:
        raise UsageError("give either --prefix or --prefix-file")
    if file is not None and has_maps:
        raise UsageError("--attention goes with one --prefix for all lines, not with --prefix-file")
