"""`lm chat`: talk with a model, turn by turn."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.loading import RunPath, import_torch, load_decoder
from cli.new_runs import resolve_hub_name, suggest_compiling
from cli.options import Options, with_settings
from lm.config.inference import SamplingConfig
from lm.config.run_config import HardwareConfig

_System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System prompt.")]


@with_settings(
    {"sampling": SamplingConfig, "hardware": HardwareConfig},
    "max_tokens temperature top_k top_p min_p repetition_penalty stop seed device dtype threads",
)
def chat(run: RunPath, *, system: _System = None, options: Options) -> None:
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
    from cli.generation.session import run_session
    from lm.decoding.chat import Chat
    from lm.decoding.generator import Generator
    from lm.text.records import Part

    hardware = options.build(HardwareConfig)
    model, loaded = load_decoder(run, hardware)
    suggest_compiling(model.config, hardware)
    generator = Generator(model, loaded.tokenizer, options.build(SamplingConfig))
    run_session(Chat(generator, messages=[] if system is None else [Part("system", system)]))
