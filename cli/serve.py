"""`lm serve`: serve models over HTTP."""

from __future__ import annotations

from typing import Annotated

from cli.loading import import_torch, resolve_hub_name, run_argument, suggest_compiling
from cli.options import Options, with_settings
from lm.config.inference import ServerConfig
from lm.config.run_config import HardwareConfig
from lm.errors import missing_packages

_Runs = Annotated[
    list[str],
    run_argument("RUN...", "Runs or checkpoints to serve, as RUN or NAME=RUN."),
]


@with_settings(
    {"server": ServerConfig, "hardware": HardwareConfig},
    "host port token cors batch_size max_requests max_samples max_length timeout drain device dtype threads",
    common="--host --port --token --cors --batch-size --max-requests --max-samples --max-length --timeout",
)
def serve(runs: _Runs, *, options: Options) -> None:
    """Serve models over HTTP: an OpenAI-compatible API and a web page.

    The requests for a model are decoded in one batch (continuous batching). With a seed, a completion is the same as
    from lm generate, regardless of other requests, except for the rounding of the logits. On Ctrl-C or SIGTERM, the
    server finishes running requests, for at most --drain seconds, and exits.

    Examples:
      lm serve runs/novel
      lm serve runs/novel runs/en-de --port 8080
      LM_TOKEN=secret lm serve novel=runs/novel --host 0.0.0.0
    """
    config = options.build(ServerConfig)
    hardware = options.build(HardwareConfig)

    import_torch()
    from cli.console import print_note
    from lm.run_folder import find_first, load_config
    from lm.serving.scheduler import name_models

    try:
        from lm.serving.app import serve as run_server
    except ImportError:
        raise missing_packages("lm serve", "starlette", "uvicorn") from None

    named = {name: resolve_hub_name(run) for name, run in name_models(runs).items()}
    first = load_config(find_first(next(iter(named.values())))).model
    suggest_compiling(first, hardware)
    run_server(
        named, config, hardware,
        on_ready=lambda url, names: print_note(f"serving {', '.join(names)} on {url}"),
    )  # fmt: skip
