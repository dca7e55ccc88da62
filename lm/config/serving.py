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
    """Where the server listens, and its limits."""

    host: Annotated[str, "Address to listen on; non-loopback needs --token."] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), "Port; 0: any free one."] = 8000
    token: Annotated[_Token | None, "Bearer token required from clients; default none."] = None
    cors: Annotated[tuple[str, ...], "Allowed CORS origin; * for all. Repeatable."] = ()
    batch_size: Annotated[_Batch, "Maximum samples per decode batch, per model."] = 32
    max_requests: Annotated[Count, "Maximum waiting requests per model; more get 429."] = 64
    max_samples: Annotated[_Batch, "Maximum samples per request: prompts × n."] = 32
    max_length: Annotated[int, Meta(ge=2), "Maximum tokens of a prompt and its completion."] = 8192
    max_body: Annotated[int, Meta(ge=1024), "Maximum size of a request body, in bytes."] = 1 << 20
    timeout: Annotated[float, Meta(ge=0.1, le=1e9), "Time limit of a request, including waiting, in seconds."] = 600.0
    drain: Annotated[float, Meta(ge=0, le=1e9), "Time limit of running requests at shutdown, in seconds."] = 30.0
    prefill_chunk: Annotated[int, Meta(ge=16), "Prompt tokens prefilled between two decode steps."] = 256
