"""How models are served over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError


@dataclass(frozen=True)
class ServerConfig(CheckedConfig):
    """Where the server listens, and its limits."""

    host: str = option("127.0.0.1", "Address to listen on; non-loopback needs --token.", unit="ADDRESS")
    port: int = option(8000, "Port; 0: any free one.", minimum=0, maximum=65535)
    token: str | None = option(
        None, "Bearer token required from clients.", unit="TOKEN", default_text="LM_SERVE_TOKEN, or none"
    )
    cors: tuple[str, ...] = option((), "Allowed CORS origin; * for all.", unit="ORIGIN")
    runs: str | None = option(
        None, "Folder of runs whose training curves are shown.", unit="FOLDER", may_name_files=True, default_text="none"
    )
    batch_size: int = option(32, "Maximum samples per decode batch, per model.", minimum=1, maximum=1024)
    max_requests: int = option(64, "Maximum waiting requests per model; more get 429.", minimum=1, maximum=100_000)
    max_samples: int = option(32, "Maximum samples per request: prompts × best_of or n.", minimum=1, maximum=1024)
    max_length: int = option(8192, "Maximum tokens of a prompt and its completion.", minimum=2, unit="TOKENS")
    max_body: int = option(1 << 20, "Maximum size of a request body.", minimum=1024, unit="BYTES")
    timeout: float = option(600.0, "Time limit of a request, including waiting.", minimum=0.1, unit="SECONDS")
    drain: float = option(30.0, "Time limit of running requests at shutdown.", minimum=0, unit="SECONDS")
    prefill_chunk: int = option(256, "Prompt tokens prefilled between two decode steps.", minimum=16, unit="TOKENS")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UsageError("token must be printable ASCII, and not empty", settings=("token",))
