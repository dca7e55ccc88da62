"""`lm translate`: translate lines of text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import STDIN, ToLanguage, read_input_lines
from cli.loading import EnsemblePath, import_torch, suggest_compiling
from cli.options import Options, with_settings
from lm.config.inference import PENALTIES, AttentionConfig, SamplingConfig, TranslationConfig
from lm.config.run_config import HardwareConfig
from lm.config.run_spec import refuse_settings
from lm.errors import InputError
from lm.files import atomic_write_text
from lm.text.text_file import TextFile

if TYPE_CHECKING:
    from lm.text.parallel_text import DependencyHeads

_FIELDS = ("text", "tokens", "logprobs", "score", "finish_reason")
_Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="Text to translate, line by line. [default: stdin]")
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="File of the translations.")]
_Heads = Annotated[
    list[Path] | None,
    typer.Option("--dependency-heads", metavar="FILE", help="Dependency trees of the lines. Repeatable."),
]
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
    },
    "beam n_best length_penalty batch_tokens layer head unit device dtype threads",
    common="--out --to --beam --n-best --length-penalty --attention --json",
)
def translate(
    run: EnsemblePath,
    files: _Files = None,
    *,
    out: _Out = None,
    to: ToLanguage = None,
    heads: _Heads = None,
    attention: _Attention = None,
    as_json: _AsJson = False,
    options: Options,
) -> None:
    """Translate text line by line.

    Line n of the output is the translation of line n. A line holds a sentence, or whatever the lines of the training
    data held; a blank one stays blank. With --n-best N each line has N lines of output. At a terminal each line is
    translated at once; otherwise lines are read ahead and sorted by length for batching.

    Penalties and biases (--set sampling.repetition_penalty=1.2) change the model's logits, and so the score.

    Examples:
      lm translate runs/en-de < news.en > news.de
      lm translate runs/en-de news.en --attention news.html > news.de
      lm translate runs/en-de news.en -o news.de --beam 8 --length-penalty 0.6
      lm translate runs/en-de,runs/en-de-2 < news.en > news.de
      lm translate runs/en-de --n-best 3 --json < news.en | jq .translations
      lm translate runs/both --to de < news.en
    """
    refuse_settings("sampling", options.typed["sampling"].keys() - set(PENALTIES), beside="beam search")
    import_torch()
    from cli.attention import check_output_path, write_maps
    from cli.console import escape_for_stream, format_json_line, print_note
    from cli.console.figures import show_counter
    from lm.decoding.sampling import Sampler, parse_logit_biases
    from lm.decoding.translation import READ_AHEAD, TranslationModel, Translator
    from lm.engine import load_for_decoding
    from lm.evaluation.attention import compute_attention

    if attention is not None:
        check_output_path(attention)
    is_typed = not files and sys.stdin.isatty()
    hardware, sampling = options.build(HardwareConfig), options.build(SamplingConfig)
    loaded = load_for_decoding(run, hardware)
    model = TranslationModel.from_loaded(loaded)
    suggest_compiling(model.model.config, hardware)
    biases = parse_logit_biases(sampling.logit_bias, model.tokenizer)
    sampler = Sampler.from_config(sampling.replace(temperature=0.0), biases)
    translator = Translator(model, options.build(TranslationConfig), sampler=sampler, to=to)
    translated: list[tuple[str, Sequence[int], Sequence[int] | None]] = []
    with (
        atomic_write_text(out) if out is not None else nullcontext(sys.stdout) as stream,
        nullcontext() if is_typed else show_counter("translating", "lines") as count,
    ):
        if is_typed:
            print_note("type a line to have it translated; Ctrl-D ends")
        lines, trees = _read_lines_with_heads(files or [STDIN], heads)
        results = translator.translate(lines, dependency_heads=trees, read_ahead=1 if is_typed else READ_AHEAD)
        for number, line in enumerate(results, 1):
            if line.left_out:
                print_note(f"line {number} is too long for the model: its last {line.left_out} tokens are not read")
            if as_json:
                translations = [{name: getattr(each, name) for name in _FIELDS} for each in line.translations]
                values = {"line": number, "source": line.source, "translations": translations}
                print(format_json_line(values), file=stream)
            else:
                texts = [each.text for each in line.translations]
                blank = [""] * (translator.config.n_best - len(texts))
                stream.writelines(escape_for_stream(text, stream) + "\n" for text in [*texts, *blank])
            if out is None:
                stream.flush()
            if attention is not None:
                whole = line.source, line.translations[0].tokens, line.heads
                translated.append(("", (), line.heads and ()) if line.left_out else whole)
            if count:
                count(number)
    if attention is not None:
        config = options.build(AttentionConfig)  # of an ensemble by the first model
        maps = (
            compute_attention(loaded, source, tokens, unit=config.unit, to=to, dependency_heads=heads)
            for source, tokens, heads in translated
        )
        write_maps(attention, maps, config)


def _read_lines_with_heads(
    files: Sequence[Path], heads: Sequence[Path] | None
) -> tuple[Iterator[str], Iterator[DependencyHeads] | None]:
    """Read the lines of files or stdin, and the dependency heads of their words, from one file each."""
    for file in files:
        if TextFile(str(file), file).has_rows:
            raise InputError(f"{file}: holds rows, not lines to translate")
    if not heads:
        return read_input_lines(files), None
    from lm.text.parallel_text import find_sources

    names = [*map(str, files)]
    found = find_sources(source=names, target=names, heads=[*map(str, heads)])
    pairs, same = itertools.tee(itertools.chain.from_iterable(each.records() for each in found))
    return (pair.source or "" for pair in pairs), (pair.dependency_heads or () for pair in same)
