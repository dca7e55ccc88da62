"""`lm evaluate`: how good translations are, of a run or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console.escapes import label
from cli.flags import completion
from cli.flags.options import Given, takes
from lm.config.decoding import TranslationConfig
from lm.config.evaluation import ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError
from lm.files import check_place

if TYPE_CHECKING:
    from lm.decoding.translation_input import TranslationModel

_LOOKS_TOKENIZED = 0.5  # of the lines end in " ."

_Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run (its best checkpoint) or one of its checkpoints, to translate --source.",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
_Source = Annotated[str | None, typer.Option("--source", metavar="FILE", help="What RUN translates, line by line.")]
_Target = Annotated[
    list[str],
    typer.Option(
        "--target", metavar="FILE", help="Reference translations; repeat it for further references of the same lines."
    ),
]
_Hypotheses = Annotated[
    str | None, typer.Option("--hypotheses", metavar="FILE", help="Score these translations, instead of a run's.")
]
_Versus = Annotated[
    Path | None,
    typer.Option(
        "--versus",
        metavar="RUN2|FILE",
        help="Compare with another run's translations, or those in a file.",
        autocompletion=completion.runs,
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the translations of RUN here.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: scores, intervals and signatures.")]


_Language = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="LANGUAGE",
        help="Language to translate into, where a run knows several [default: from the name of --target, as in "
        "test.de].",
    ),
]


@takes(
    {"scoring": ScoringConfig, "translation": TranslationConfig, "hardware": HardwareConfig},
    leave_out=("n_best", "read_ahead"),
)
def evaluate(
    run: _Run = None,
    *,
    target: _Target,
    source: _Source = None,
    hypotheses: _Hypotheses = None,
    versus: _Versus = None,
    language: _Language = None,
    out: _Out = None,
    as_json: _AsJson = False,
    given: Given,
) -> None:
    """Score translations: BLEU, chrF and TER by sacreBLEU.

    A run translates --source and is scored against --target; --hypotheses scores translations that are there already.
    Every figure comes with sacreBLEU's signature, which says all it depends on, and the 95% interval of its bootstrap.
    Line n of each file belongs to line n of the others.

    BLEU and chrF are better when higher, TER when lower. Figures compare only where their signatures are equal. Papers
    that give tokenized, lowercased BLEU compare with --tokenize none --lowercase on tokenized text alone.

    --versus translates with another run, or reads its translations, and tells by paired bootstrap resampling how
    often chance alone makes such a difference (p).

    Examples:
      lm evaluate runs/en-de --source test.en --target test.de
      lm evaluate runs/en-de --source test.en --target test.de -o test.out --json
      lm evaluate runs/en-de --source test.en --target test.de --versus runs/other
      lm evaluate --hypotheses test.out --target test.de
      lm evaluate --hypotheses test.tok --target reference.tok --tokenize none --lowercase
    """
    _check(run, source, hypotheses, out)
    config, translator = ScoringConfig(**given["scoring"]), _Translators(given, language, target[0])
    from cli.translation import scores as report
    from lm.evaluation import translation

    lines, references = _lines(hypotheses or source or "-", target)
    sources = None if source is None else _lines(source, target)[0]
    translated = lines if run is None else translator.translate(run, sources)
    if out is not None:
        _write(out, translated)
    _warn_of_tokens(translated, config)
    name = str(run or hypotheses)
    if versus is None:
        scores = translation.scores(translated, references, config)
        exact = translation.exact_matches(translated, references)
        tell = report.print_scores_json if as_json else report.print_scores
        tell(scores, name=name, lines=len(translated), exact=exact)
        return
    other = translator.translate(versus, sources) if versus.is_dir() else _lines(str(versus), target)[0]
    comparisons = translation.compare(translated, other, references, config)
    names = name, str(versus)
    (report.print_comparisons_json if as_json else report.print_comparisons)(comparisons, names, lines=len(translated))


def _check(run: Path | None, source: str | None, hypotheses: str | None, out: Path | None) -> None:
    if (run is None) == (hypotheses is None):
        raise UsageError("what is to be scored? Give a run with --source, or translations with --hypotheses")
    if run is not None and source is None:
        raise UsageError("a run needs something to translate: give --source")
    if hypotheses is not None and out is not None:
        raise UsageError("--out writes the translations of a run; these are there already (--hypotheses)")
    if out is not None:
        check_place(out)


def _lines(path: str, targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The lines of a file, and those of each file of references; InputError unless they are as many."""
    from lm.text.files import text_files
    from lm.text.parallel import ParallelText

    files, references = text_files([path]), text_files(targets)
    if len(files) > 1:
        raise UsageError(f"{path}: stands for {len(files)} files; name one")
    read: list[str] = []
    columns = []
    for reference in references:
        pairs = list(ParallelText(files[0], reference, ("", "")).pairs())
        read = [pair.source for pair in pairs]
        columns.append([pair.target for pair in pairs])
    return read, columns


@dataclass(frozen=True)
class _Translators:
    """What makes translations of runs.

    Attributes:
        given: the settings.
        language: to translate into, if it was said.
        target: a file of references, whose name may tell it otherwise.
    """

    given: Given
    language: str | None
    target: str

    def translate(self, run: Path, sources: Sequence[str] | None) -> list[str]:
        """The translations of some lines, with a bar on stderr if that is a terminal."""
        from rich.progress import track

        from cli.console.progress import progress_console
        from lm.checkpoint import load_model
        from lm.decoding.translation import Translator
        from lm.decoding.translation_input import TranslationModel
        from lm.hardware import inference_hardware

        if sources is None:
            raise UsageError(f"{run}: a run needs something to translate: give --source")
        model = TranslationModel.of(load_model(run, inference_hardware(HardwareConfig(**self.given["hardware"]))))
        translator = Translator([model], TranslationConfig(**self.given["translation"]), to=self._language(model))
        console = progress_console()
        done = track(
            translator.translate(sources),
            f"translating with {label(run)}", len(sources), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        return [one.translations[0].text for one in done]

    def _language(self, model: TranslationModel) -> str | None:
        """The language, of a model with several directions: what the user asks for, or what the file's name tells."""
        from lm.text.parallel import language_of_file
        from lm.tokenizer.languages import tag_to

        tag = tag_to(model.source_tokenizer, self.language, told_by_file=language_of_file(self.target))
        return None if tag is None else tag.language


def _write(path: Path, lines: Sequence[str]) -> None:
    from cli.console.messages import note
    from lm.files import replaced

    with replaced(path) as file:
        file.writelines(line + "\n" for line in lines)
    note(f"wrote {path}")


def _warn_of_tokens(lines: Sequence[str], config: ScoringConfig) -> None:
    """A note where text looks tokenized, but is about to be tokenized again."""
    tokenized = sum(line.endswith(" .") for line in lines)
    if config.tokenize != "none" and tokenized > _LOOKS_TOKENIZED * len(lines):
        from cli.console.messages import note

        note("the translations look tokenized (they end in ' .'): scores of plain text compare, or use --tokenize none")
