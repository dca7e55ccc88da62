"""How models are served over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lm.config.settings import Config, Count

_Token = Annotated[str, Meta(pattern="^[!-~]([ -~]*[!-~])?$")]
_Batch = Annotated[int, Meta(ge=1, le=1024)]


@dataclass(frozen=True)
class ServerConfig(Config):
    """Where the server listens, and its limits.

    Settings:
        host: Address to listen on; non-loopback needs --token.
        port: Port; 0: any free one.
        token: Bearer token required from clients; default none.
        cors: Allowed CORS origin; * for all. Repeatable.
        batch_size: Maximum samples per decode batch, per model.
        max_requests: Maximum waiting requests per model; more get 429.
        max_samples: Maximum samples per request: prompts × n.
        max_length: Maximum tokens of a prompt and its completion.
        max_body: Maximum size of a request body, in bytes.
        timeout: Time limit of a request, including waiting, in seconds.
        drain: Time limit of running requests at shutdown, in seconds.
        prefill_chunk: Prompt tokens prefilled between two decode steps.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    token: _Token | None = None
    cors: tuple[str, ...] = ()
    batch_size: _Batch = 32
    max_requests: Count = 64
    max_samples: _Batch = 32
    max_length: Annotated[int, Meta(ge=2)] = 8192
    max_body: Annotated[int, Meta(ge=1024)] = 1 << 20
    timeout: Annotated[float, Meta(ge=0.1, le=1e9)] = 600.0
    drain: Annotated[float, Meta(ge=0, le=1e9)] = 30.0
    prefill_chunk: Annotated[int, Meta(ge=16)] = 256
