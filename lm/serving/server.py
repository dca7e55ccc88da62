"""Runs the server: binds the address, loads the models, answers until a signal."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.errors import InputError, UsageError
from lm.serving.app import build_app
from lm.serving.http import is_loopback
from lm.serving.models import Models, load_models
from lm.serving.streams import Delivery

_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 75


def bind(config: ServerConfig) -> socket.socket:
    """Bind the server's address, before models are loaded.

    Raises:
        UsageError: others can reach the address, and there is no token.
        InputError: the address is in use, or is none of this machine.
    """
    if config.token is None and not is_loopback(config.host):
        raise UsageError(
            f"others can reach {config.host}: set a token, or serve to this machine only (127.0.0.1)",
            settings=["token", "host"],
        )
    where = f"{config.host}:{config.port}"
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "the port is in use; choose another" if is_in_use else str(getattr(error, "strerror", error))
        raise InputError(f"{where}: {reason}", settings=["port"] if is_in_use else ["host"]) from None
    return listener


def serve(
    runs: dict[str, Path],
    config: ServerConfig,
    hardware: HardwareConfig,
    *,
    on_ready: Callable[[str, Models], None],
) -> None:
    """Serve models until SIGINT or a termination signal, which is raised again after running requests have ended.

    Args:
        runs: by name.
        config: address and limits.
        hardware: what to run on.
        on_ready: called with the URL and the models before the first request.

    Raises:
        InputError: the address cannot be used, or a run is missing or damaged.
        UsageError: the address needs a token.
    """
    with bind(config) as listener:
        delivery = Delivery()
        models = load_models(runs, hardware, config, delivery)
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

        async def start() -> None:
            delivery.open(asyncio.get_running_loop())
            models.start()

        app, endpoints = build_app(models, config, on_start=start)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    on_ready(url, models)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                endpoints.is_draining = True
                await super().shutdown(sockets)

        Server(
            uvicorn.Config(
                app,
                backlog=_BACKLOG,
                log_config=None,
                log_level="error",
                access_log=False,
                lifespan="on",
                loop="asyncio",
                http="h11",
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(config.drain),
                h11_max_incomplete_event_size=65_536,
            )
        ).run(sockets=[listener])
