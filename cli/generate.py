"""`lm generate`: continue a prompt; `lm chat`: talk with a model, turn by turn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import read_text_argument
from cli.loading import (
    EnsemblePath,
    import_torch,
    load_decoder,
    load_draft,
    resolve_hub_name,
    run_option,
    suggest_compiling,
)
from cli.options import Options, with_settings
from lm.config.inference import LENGTH_LIMITS, BeamConfig, SamplingConfig
from lm.config.run_config import HardwareConfig
from lm.config.run_spec import refuse_settings
from lm.config.settings import list_settings
from lm.errors import UsageError

_BATCH_SIZE, _PROMPTS_BATCH_SIZE = 16, 64
_SAMPLING = [each.name for each in list_settings("sampling", SamplingConfig) if each.name != "token_healing"]
"""Settings with a flag."""


_Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT", help="Text to continue, or - for stdin. Without it: piped stdin, or else a new document."
    ),
]
_Prompts = Annotated[
    str | None, typer.Option(metavar="FILE", help="File of prompts: one per line, or .jsonl; - for stdin.")
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="With --prompts: output file.")]
_Interactive = Annotated[
    bool, typer.Option("--interactive", "-i", help="Read lines, and continue the text after each.")
]
_Samples = Annotated[
    int,
    typer.Option("-n", "--samples", min=1, metavar="N", help="Samples per prompt, separated by lines <|endoftext|>."),
]
_BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", min=1, metavar="N",
        help=f"Batch size. [default: {_BATCH_SIZE}; --prompts {_PROMPTS_BATCH_SIZE}]",
    ),
]  # fmt: skip
_Echo = Annotated[
    bool, typer.Option(help="Print the prompt before each completion. [default: yes]", show_default=False)
]
_Stats = Annotated[bool | None, typer.Option(help="Print speed, engine and seed to stderr. [default: at a terminal]")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines: prompt, text, tokens, logprobs, …")]
_Draft = Annotated[
    str | None,
    run_option("--draft-model", "RUN", "Draft model for speculative decoding."),
]
_PromptLookup = Annotated[
    bool, typer.Option("--prompt-lookup", help="Speculative decoding: draft from the prompt, not by a model.")
]
_TopLogprobs = Annotated[
    int, typer.Option("--top-logprobs", min=0, metavar="N", help="As JSON, with the top N tokens at each position.")
]


@with_settings(
    {"sampling": SamplingConfig, "beam": BeamConfig, "hardware": HardwareConfig},
    f"{' '.join(_SAMPLING)} beam length_penalty device dtype threads",
    common="--samples --max-tokens --temperature --top-k --top-p --min-p --beam --repetition-penalty --stop --seed "
    "--interactive --prompts --out --json",
)
def generate(
    run: EnsemblePath,
    prompt: _Prompt = None,
    *,
    prompts: _Prompts = None,
    out: _Out = None,
    interactive: _Interactive = False,
    samples: _Samples = 1,
    batch_size: _BatchSize = None,
    echo: _Echo = True,
    draft_model: _Draft = None,
    prompt_lookup: _PromptLookup = False,
    stats: _Stats = None,
    as_json: _AsJson = False,
    top_logprobs: _TopLogprobs = 0,
    options: Options,
) -> None:
    """Continue a prompt, or generate a new text.

    Text is streamed. With -n, samples are printed in order, separated by a line <|endoftext|>, as in a corpus. With a
    seed, sample i is the same for any -n. Log-probabilities (--json) are those of the model at temperature 1, before
    any filter. They include the end-of-text token.

    Token healing resamples the last token of the prompt among those that start with its text, so that a prompt may end
    after a space or inside a word. With --json, the first token may therefore start inside the prompt.

    Logit biases are added to the model's logits, then penalties are applied. The result is divided by the temperature
    and filtered by top-k, top-p, min-p and typical sampling, in this order.

    --beam searches for the most probable texts instead of sampling. -n sets how many are printed; --json adds their
    scores.

    --prompts continues each line of a file with continuous batching. With a seed, sample i of a prompt does not depend
    on other prompts, their order or -n, except for the rounding of the logits. Repeated prompts get different samples.

    --draft-model speeds up single samples of a large model if many draft tokens are accepted.
    Greedy results are the same as without a draft. Samples differ, but a seed makes them reproducible.

    --interactive reads lines and, after each, continues the whole text so far; /help lists its commands.

    Examples:
      lm generate runs/novel "It was a dark"
      lm generate runs/novel --temperature 0 --max-tokens 50 < beginning.txt
      lm generate runs/novel "Once" -n 5 --top-p 0.9 --seed 1 --json
      lm generate runs/novel "Once" --min-p 0.05 --repetition-penalty 1.1 --stop "The end" --logit-bias " the=-2"
      lm generate runs/novel "Once" --beam 5 -n 3 --json
      lm generate runs/novel "Once" --draft-model runs/novel-tiny --temperature 0 --stats
      lm generate runs/novel --prompts beginnings.txt --json -o texts.jsonl
    """
    run = resolve_hub_name(run)
    config, beam = options.build(SamplingConfig), options.build(BeamConfig)
    if beam.beam is not None:
        ignored = options.typed["sampling"].keys() - {*LENGTH_LIMITS, "token_healing"}
        refuse_settings("sampling", ignored, beside="beam search")
    if (out if prompts is None else prompt) is not None:
        raise UsageError("give either a prompt or --prompts; --out is for the results of --prompts")
    hardware = options.build(HardwareConfig)
    text = "" if prompts is not None or (interactive and prompt is None) else read_text_argument(prompt) or ""
    import_torch()
    from cli.generating import GenerationRequest, generate_for_prompts, generate_samples, run_session
    from lm.decoding.chat import Chat
    from lm.decoding.generator import PROMPT_LOOKUP, Generator

    model, loaded = load_decoder(run, hardware)
    suggest_compiling(model.config, hardware)
    generator = Generator(
        model, loaded.tokenizer, config,
        batch_size=batch_size or (_BATCH_SIZE if prompts is None else _PROMPTS_BATCH_SIZE),
        draft=PROMPT_LOOKUP if prompt_lookup else draft_model and load_draft(Path(draft_model), hardware, loaded),
        follows_examples=loaded.config.is_supervised,
    )  # fmt: skip
    request = GenerationRequest(
        generator, beam, samples, top_logprobs, generator.plan(samples).dtype, as_json=as_json or top_logprobs > 0,
        echo=echo, stats=sys.stderr.isatty() if stats is None else stats,
    )  # fmt: skip
    if prompts is not None:
        generate_for_prompts(prompts, request, out)
    elif interactive:
        run_session(Chat(generator, is_text=True), text)
    else:
        generate_samples(text, request)


_System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System prompt.")]


@with_settings(
    {"sampling": SamplingConfig, "hardware": HardwareConfig},
    "max_tokens temperature top_k top_p min_p repetition_penalty stop seed device dtype threads",
)
def chat(run: EnsemblePath, *, system: _System = None, options: Options) -> None:
    r"""Chat with a model.

    RUN is trained on conversations (lm train chats.jsonl), or imported with a chat template.

    Replies are streamed. A line that ends in \ continues on the next line. /help lists the commands: /undo, /retry and
    /save. Ctrl-C stops a reply, Ctrl-D ends the chat.

    When the context is full, the oldest turns are dropped from it; the system prompt stays. If stdin is not a terminal,
    each line is a message.

    Examples:
      lm chat runs/chats
      lm chat runs/chats --system "Be brief." --temperature 0.5
      lm chat runs/chats --temperature 0 < questions.txt > answers.txt
    """
    run = resolve_hub_name(run)
    import_torch()
    from cli.generating import run_session
    from lm.decoding.chat import Chat
    from lm.decoding.generator import Generator
    from lm.text import Part

    hardware = options.build(HardwareConfig)
    model, loaded = load_decoder(run, hardware)
    suggest_compiling(model.config, hardware)
    generator = Generator(model, loaded.tokenizer, options.build(SamplingConfig))
    run_session(Chat(generator, messages=[] if system is None else [Part("system", system)]))
