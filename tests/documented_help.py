"""Pages of documentation from code: the help of every command, the settings of training, the fields of requests.

`python -m tests.documented_help > docs/commands.md`, with `settings` for docs/reference/settings.md, and with `server`
for docs/reference/server.md.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from cli.main import build_parser, run
from cli.options import settings_page as format_settings
from lm.config.inference import SamplingConfig
from lm.config.run_config import SECTIONS
from lm.config.settings import list_all_settings, list_settings
from lm.serving.bodies import IGNORED, TRANSLATION, UNSUPPORTED, ChatBody, CompletionBody

WIDTH = 98
_OPENING = """\
# Commands

The output of `lm COMMAND --help` for each command. `lm COMMAND -h` shows the common options on one screen, and
`lm train --help-settings` all [settings](reference/settings.md). `make docs` generates both pages.

## Options from the environment

Every setting can be given by an environment variable: `LM_` and its name in capitals. `LM_DEVICE=cpu` is
`--device cpu`, and `LM_MAX_TOKENS=50` is `--max-tokens 50`, in each command that has the setting; `LM_EXPERTS=8` is
`--set model.experts=8`. A switch takes true or false. A repeatable one gets one value. An empty variable is ignored.
Options that are no settings, such as `--json`, have none. `LM_CACHE` is the cache folder.

Precedence, from highest to lowest: options, environment, `--config`, `--preset`. A setting of a feature that is off is
an error, such as `lora.alpha` without `lora.rank`. So are options that contradict each other, such as `--vocab-size`
beside `--tokenizer`. Any other option that has no effect is ignored. `--resume` keeps the plan of the run. A variable
that no command reads is ignored.

## Exit codes

0; 1 for bad input, such as a file or a run; 2 for bad usage; 130 after Ctrl-C and 143 after SIGTERM. Both save a run
that is being trained.

## Completion

`lm --install-completion` installs completion of commands, options, choices, settings, presets, runs and
checkpoints for bash, zsh and fish. `lm --show-completion` prints what it installs. zsh and fish call the `lm` that is
on the `PATH`.
"""


_SETTINGS = """\
# Settings

A run is defined by its settings. Each has a key, `TABLE.KEY`, which is the same in a run's `config.json`, in a TOML
file (`lm train --config FILE`) and on the command line:

    $ lm train book.txt --set model.experts=8 --set model.experts_per_token=2
    $ lm train book.txt --config moe.toml

```toml
preset = "small"

[model]
experts = 8
experts_per_token = 2
```

`--set` can be repeated and wins like a flag. It takes every setting, those with a flag too; the ones for special
architectures and for experiments have no other option in the help. A switch takes true or false; one that is a list
is given once for each entry. A flag wins over the environment, that over a file, and a file over a preset. `lm info
RUN` prints the main choices with their reasons; `config.json` in a run has all. `make docs` writes this page.

## All settings of a run

What `lm train --help-settings` says. Presets replace the defaults,
and so does `lm train` where it chooses for a time and a corpus.

```text
{settings}
```
"""


_SERVER = """\
# The HTTP API of `lm serve`

[Serving models](../how-to/serving.md) says how to start a server. `make docs` writes this page.

Requests and answers are JSON. An error has OpenAI's format, `{{"error": {{"message", "type", "param", "code"}}}}`, and one of these
statuses:

| status | meaning |
|-|-|
| 400 | the request is wrong; `param` names the field, in most cases |
| 401 | the token is missing or wrong |
| 403 | the Host header or the origin of a page is not allowed |
| 404, 405 | there is no such path, method or model |
| 408, 413 | the request is too slow or too large |
| 429 | too many requests wait (`--max-requests`); `Retry-After` says when to try again |
| 503 | the server is ending, the request took too long (`--timeout`), or the model failed |

Unknown fields are refused, because one that is misspelled would have no effect. Of OpenAI's fields, those that would change the text
are refused by name unless they have a neutral value: {unsupported}. Those without effect are accepted: {ignored}.
A field that is null is the same as no field.

## `POST /v1/completions`

{completion}

## `POST /v1/chat/completions`

The messages become text by the chat template of the model. A model that was not trained on conversations has none, and the request is
refused. The oldest turns are left out of messages that fill the context, and the answer has their number as `dropped_turns`.

{chat}

Each of the `messages` has a `role` (`system`, also called `developer`; `user` or `assistant`) and a `content` (a text, which may be
empty, or a list of parts of type `text`). The system prompt comes first, if there is one; then user and assistant take turns, and the
user has the last word. A `name` has no effect. `max_completion_tokens` is the same as `max_tokens`.

## Sampling fields of both

They have the names, limits and defaults of `lm generate`: `temperature` is 0.8, and `max_tokens` of a text is 200; a reply of a chat
ends with its turn or the context. With a `seed`, sample i equals that of `lm generate`; `seed` and `top_k` may be -1 for none. `stop` is a text or a list of texts, and `logit_bias` an object of token IDs, or texts, with what is added to
their logits.

{sampling}

Log-probabilities are the model's own: at temperature 1, before any filter. In `usage`, tokens that end a text or a stop string count.
In a stream, several tokens that are ready together come in one event. `max_tokens: 0` with `echo` and `logprobs` scores a prompt.
In `logprobs` of `/v1/completions` a token that is part of a character is spelled by its bytes, such as `bytes:\\xc3`, and an alternative
of the same text as a more probable one by its ID, such as `token_id:97`.

## Other endpoints

| path | request | answer |
|-|-|-|
| `GET /v1/models`, `/v1/models/NAME` | | name, purpose, context length, languages |
| `POST /score` | `text`, `top` (5) | of each token: byte offset, nats, rank and the `top` alternatives; totals, bits/byte and perplexity as of `lm perplexity`, in the dtype of the server |
| `POST /next` | `prompt`, `top` (40), sampling fields | the most probable next tokens: `probability` before the filters and `filtered` after them |
| `POST /attention` | `text`, `target`, `to` | `weights` by layer, head, query and key |
| `POST /translate` | `text` or a list of lines, `to`, `alignments`, {translation} | of each line: translations with score and log-probabilities; alignments of words |
| `GET /health` | | `status`; needs no token |
| `GET /metrics` | | counts of generation, for Prometheus; translations are not counted |

Each takes `model`, which may be left out if one model is served. `/v1/responses` and `/v1/embeddings` do not exist.
"""  # noqa: E501 (rows of tables)


def server_page() -> str:
    """The page of the server's requests."""
    return _SERVER.format(
        completion=_field_table("", CompletionBody), chat=_field_table("", ChatBody),
        sampling=_field_table("sampling", SamplingConfig), ignored=_code(IGNORED), unsupported=_code(UNSUPPORTED),
        translation=_code(TRANSLATION),
    )  # fmt: skip


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _field_table(section: str, body: type[Any]) -> str:
    rows = ["| field | |", "|-|-|"]
    for field in list_settings(section, body):
        is_known = isinstance(field.default, (bool, int, float, str))
        default = f" Default: {str(field.default).lower()}." if is_known else ""
        rows.append(f"| `{field.name}` | {field.help}{default} |")
    return "\n".join(rows)


def settings_page() -> str:
    """The page of settings."""
    return _SETTINGS.format(settings=format_settings(list_all_settings(SECTIONS)))


def page() -> str:
    """The whole page of commands."""
    sections = (f"## {name}\n\n```text\n{text}\n```\n" for name, text in helps())
    return "\n".join([_OPENING, *sections])


def helps() -> Iterator[tuple[str, str]]:
    """Each command as it is typed, and its help."""
    for path, _ in commands():
        with redirect_stdout(StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(WIDTH))
            run([*path.split()[1:], "--help"])
        yield path, _strip(shown.getvalue())


def _strip(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def commands() -> Iterator[tuple[str, Any]]:
    """Each command as it is typed, and typer's object for it."""
    for path, context in _contexts("lm", build_parser(), None):
        yield path, context.command


def _contexts(name: str, command: Any, parent: Any) -> Iterator[tuple[str, Any]]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    yield context.command_path, context
    for below in getattr(command, "commands", ()):
        yield from _contexts(below, command.get_command(context, below), context)


if __name__ == "__main__":
    pages = {"settings": settings_page, "server": server_page}
    sys.stdout.write(pages.get(" ".join(sys.argv[1:]), page)())
