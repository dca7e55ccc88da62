"""`lm generate`: continue a prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.flags.arguments import text_argument
from cli.flags.environment import variable_of
from cli.flags.loading import RunPath, load_decoder
from cli.flags.options import Given, takes
from lm.config.decoding import BeamConfig, SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.options import options
from lm.errors import UsageError

if TYPE_CHECKING:
    from cli.generation.samples import Output
    from lm.decoding.generator import Generator

INTERRUPTED = 130


_Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        help="Text to continue; - or nothing reads it from a pipe, less one line end. An empty prompt begins a "
        "new document.",
        show_default=False,
    ),
]
_PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Continue the text of this file, exactly.", show_default=False)
]
_Interactive = Annotated[
    bool, typer.Option("--interactive", "-i", help="Write a text together with the model, line by line.")
]
_Samples = Annotated[int, typer.Option("-n", "--samples", min=1, metavar="N", help="How many continuations.")]
_BatchSize = Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Samples generated side by side.")]
_Echo = Annotated[
    bool,
    typer.Option(help="Print the prompt in front of each text, never with --json [default: yes].", show_default=False),
]
_UseCache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Keep keys and values; without them all is read again each time [default: yes].",
        show_default=False,
    ),
]
_Stats = Annotated[
    bool | None,
    typer.Option(help="Say speed and seed on stderr [default: if that is a terminal].", show_default=False),
]
_AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a line of JSON a sample: prompt, text, tokens, logprobs, finish_reason, seed (score with --beam).",
    ),
]
_TopAlternatives = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="With --json: the N likeliest tokens in each place (alternatives)."),
]


@takes({"sampling": SamplingConfig, "beam": BeamConfig, "hardware": HardwareConfig})
def generate(
    run: RunPath,
    prompt: _Prompt = None,
    *,
    prompt_file: _PromptFile = None,
    interactive: _Interactive = False,
    samples: _Samples = 1,
    batch_size: _BatchSize = 16,
    echo: _Echo = True,
    use_cache: _UseCache = True,
    stats: _Stats = None,
    as_json: _AsJson = False,
    top_alternatives: _TopAlternatives = 0,
    given: Given,
) -> None:
    """Continue a prompt, or begin a new text.

    The text is written as it comes. Several samples come in order, with a line <|endoftext|> between them, as in a
    corpus. Log-probabilities (--json) are the model's own: of all tokens, at temperature 1, before any filter; the
    tokens that ended a text are among them.

    Logit biases, then penalties change the model's logits first. What they leave is divided by the temperature and cut
    to the top k, top p, min p and typical tokens, in this order.

    --beam draws nothing: it searches for the likeliest text, and -n gives that many of the best, each with its score.

    --interactive reads lines and continues the whole text so far after each; /help there says more.

    Examples:
      lm generate runs/novel "It was a dark"
      lm generate runs/novel --greedy --max-tokens 50 < beginning.txt
      lm generate runs/novel "Once" -n 5 --top-p 0.9 --seed 1 --json
      lm generate runs/novel "Once" --min-p 0.05 --repetition-penalty 1.1 --stop "The end" --logit-bias " the=-2"
      lm generate runs/novel "Once" --beam 5 -n 3 --json
    """
    others = {"--interactive": interactive, "--json": as_json, "--top-alternatives": top_alternatives}
    _check(given, {**others, "--samples": samples > 1})
    text = _prompt(prompt, prompt_file, interactive=interactive)
    config, beam = SamplingConfig(**given["sampling"]), BeamConfig(**given["beam"])

    from cli.generation.interactive import converse
    from cli.generation.samples import JsonLines, Texts, write_found
    from lm.decoding.continuation import Continuation
    from lm.decoding.generator import Generator

    model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), instead="use lm translate")
    generator = Generator(model, loaded.tokenizer, config, use_cache=use_cache, batch_size=batch_size)
    shown = text if echo or as_json else ""
    if interactive:
        return converse(generator, opening=text, stats=bool(stats))
    if beam.beam is not None:
        found = generator.search(text, beam_size=beam.beam, length_penalty=beam.length_penalty, n=samples)
        return write_found(found, shown, as_json=as_json)
    drawn = [Continuation() for _ in range(samples)]
    output = JsonLines(drawn, shown, generator, alternatives=top_alternatives > 0) if as_json else Texts(drawn, shown)
    return _draw(generator, text, output, alternatives=top_alternatives, stats=stats)


def _check(given: Given, others: Mapping[str, Any]) -> None:
    """Refuse flags that have no meaning together; what the environment says is no contradiction, but for a beam."""
    typed = {flag for flag, on in others.items() if on and variable_of(flag) not in given.environment.values()}
    flags = {described.name: described.flag for described in options(SamplingConfig)}
    drawing = [flags[name] for name, value in given.typed["sampling"].items() if name != "max_tokens" and value != []]
    if "beam" in given["beam"]:
        unfit = [*drawing, *(flag for flag in ("--interactive", "--top-alternatives") if flag in typed)]
        if unfit:
            beam = given.environment.get("beam__beam", "--beam")
            raise UsageError(f"{beam} searches for the likeliest text and has no use for {', '.join(unfit)}")
    elif given.typed["beam"]:
        raise UsageError("--length-penalty needs --beam")
    if "--top-alternatives" in typed and not others["--json"]:
        raise UsageError("--top-alternatives needs --json")
    unfit = [flag for flag in ("--json", "--samples") if flag in typed]
    if "--interactive" in typed and unfit:
        raise UsageError(f"--interactive writes one text to the terminal and has no use for {', '.join(unfit)}")


def _prompt(argument: str | None, file: Path | None, *, interactive: bool) -> str:
    """The prompt: the argument, a file, or what a pipe holds; never waits for a terminal unless asked with `-`."""
    if file is not None and argument is not None:
        raise UsageError("give either a prompt or --prompt-file")
    if file is not None:
        from lm.text.encodings import decode

        return decode(file.read_bytes(), name=str(file))
    return (None if interactive and argument is None else text_argument(argument)) or ""


def _draw(generator: Generator, prompt: str, output: Output, *, alternatives: int, stats: bool | None) -> None:
    """Write samples as they are drawn."""
    from cli.generation.samples import Watch

    watch = Watch()
    try:
        for event in generator.generate(prompt, n=len(output.samples), alternatives=alternatives):
            output.samples[event.row].take(event)
            output.advance()
            watch.saw_token()
    except KeyboardInterrupt:
        output.interrupt(generator)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if watch.seen and (stats or (stats is None and sys.stderr.isatty())):
            watch.report(sum(len(sample.tokens) for sample in output.samples), generator.sampler)
