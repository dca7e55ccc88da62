"""Run the server: bind the address, load the models, serve until a signal."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

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
        )
    where = f"{config.host}:{config.port}"
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
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
        raise InputError(f"{where}: {reason}") from None
    return listener


class _Server(uvicorn.Server):
    """A server that sleeps until a request or a signal comes, instead of looking ten times a second.

    Attributes:
        on_ready: called when connections are accepted.
        on_shutdown: called when a signal has come.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.on_ready: Callable[[], None] = lambda: None
        self.on_shutdown: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._exit.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal, and wake the loop."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exit.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_shutdown()
        await super().shutdown(sockets)


def serve(
    runs: dict[str, Path],
    config: ServerConfig,
    hardware: HardwareConfig,
    *,
    on_ready: Callable[[str, Models], None],
) -> None:
    """Serve models until SIGINT or a termination signal, which is raised again after running requests have ended.

    Args:
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

        def started() -> None:
            on_ready(url, models)

        server = _Server(
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
        )
        server.on_ready, server.on_shutdown = started, endpoints.drain
        server.run(sockets=[listener])
