"""`lm chat`: talk with a model, turn by turn."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.loading import RunPath, import_torch, load_decoder
from cli.new_runs import resolve_hub_name, suggest_compiling
from cli.options import Options, with_settings
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig

_System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System prompt.")]
_Stats = Annotated[bool, typer.Option("--stats", help="Print speed, engine and seed of each reply to stderr.")]


@with_settings(
    {"sampling": SamplingConfig, "hardware": HardwareConfig},
    "max_tokens temperature top_k top_p min_p repetition_penalty stop seed device dtype threads",
)
def chat(run: RunPath, *, system: _System = None, stats: _Stats = False, options: Options) -> None:
    r'''Chat with a model.

    RUN should be trained on conversations (lm train chats.jsonl), or imported with a chat template. Any other model
    continues a plain transcript, with a warning.

    Replies are streamed. A line that ends in \ continues on the next line, and """ begins and ends a message of several
    lines. /help lists the commands, such as /undo, /retry and /save. Ctrl-C stops a reply, Ctrl-D ends the chat.

    When the context is full, the oldest turns are dropped from it; the system prompt stays. If stdin is not a terminal,
    each line is a message.

    Examples:
      lm chat runs/chats
      lm chat runs/chats --system "Be brief." --temperature 0.5
      lm chat runs/chats --temperature 0 < questions.txt > answers.txt
    '''
    config = options.build(SamplingConfig)
    run = resolve_hub_name(run)
    import_torch()
    from cli.console.text import print_labelled
    from cli.generation.session import Session
    from lm.decoding.chat import Chat
    from lm.decoding.generator import Generator
    from lm.text.records import Part

    model, loaded = load_decoder(run, options.build(HardwareConfig))
    generator = Generator(model, loaded.tokenizer, config)
    messages = [] if system is None else [Part("system", system)]
    suggest_compiling(model.config, next(model.parameters()).device.type)
    chat = Chat(generator, messages=messages)
    if not chat.has_template:
        print_labelled(
            "warning", f"{run} was not trained on conversations, and continues a transcript instead of replying"
        )
    Session(generator, chat=chat, stats=stats).run()
