"""The server: HTTP endpoints of the served models, who may call them, and the process around them."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lm.config.inference import ServerConfig
from lm.config.run_config import HardwareConfig
from lm.config.settings import LARGEST
from lm.errors import InputError, LMError, UsageError
from lm.serving.answers import ENDPOINTS, CompletionAnswer, build_completions, read_messages, score_prompt
from lm.serving.bodies import (
    ApiError,
    Body,
    ChatBody,
    CompletionBody,
    from_lm_error,
    invalid,
    parse,
    took_too_long,
    unavailable,
)
from lm.serving.scheduler import Completion, Event, Models, ServedModel, find_model, load_models

T = TypeVar("T")

WEB = Path(__file__).parent / "web"
WEB_FILES = {"/": WEB / "index.html"} | {
    f"/{path.relative_to(WEB).as_posix()}": path for path in WEB.rglob("*") if path.is_file()
}
_BODY_SECONDS = 30.0
"""The longest that a client may take to send a request."""
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Endpoints:
    """HTTP endpoints of the served models."""

    def __init__(self, models: Models, config: ServerConfig) -> None:
        """Create the endpoints."""
        self._models, self._config = models, config

    @property
    def routes(self) -> list[Route]:
        gets: dict[str, Any] = {
            "/health": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._list_models,
            "/v1/models/{name:path}": self._get_model,
        } | dict.fromkeys(WEB_FILES, self._web_file)
        posts: dict[str, Any] = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
        } | {path: partial(self._inspect, *endpoint) for path, endpoint in ENDPOINTS.items()}
        return [
            Route(path, handler, methods=[method])
            for method, handlers in (("GET", gets), ("POST", posts))
            for path, handler in handlers.items()
        ]

    async def _web_file(self, request: Request) -> Response:
        return FileResponse(WEB_FILES[request.url.path])

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model.to_dict() for model in self._models.values()]})

    async def _get_model(self, request: Request) -> Response:
        return JSONResponse(find_model(self._models, request.path_params["name"]).to_dict())

    async def _metrics(self, _: Request) -> Response:
        """Return all counts in the text format of Prometheus."""
        lines = []
        for model in self._models.values():
            scheduler, label = model.scheduler, msgspec.json.encode(model.name).decode()
            values = {"lm_waiting": scheduler.n_waiting, "lm_running": scheduler.n_running}
            values |= {f"lm_{name}_total": count for name, count in scheduler.counts.items()}
            lines += [f"{name}{{model={label}}} {value}" for name, value in values.items()]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _inspect(
        self, kind: type[Body], compute: Callable[[ServedModel, Any], dict[str, Any]], request: Request
    ) -> Response:
        """Answer with what a model computes between two decode steps."""
        body = parse(kind, await self._read_object(request))
        model = find_model(self._models, body.model)
        return JSONResponse(await self._compute(request, model, partial(compute, model, body)))

    async def _compute(self, request: Request, model: ServedModel, compute: Callable[[], T]) -> T:
        return await self._until_disconnect(request, asyncio.wrap_future(model.scheduler.compute(compute)))

    async def _completions(self, request: Request) -> Response:
        given = await self._read_object(request)
        if is_scored_only := given.get("max_tokens") == 0 and bool(given.get("echo")):
            del given["max_tokens"]
        return await self._complete(request, parse(CompletionBody, given), is_scored_only=is_scored_only)

    async def _chat(self, request: Request) -> Response:
        chat = parse(ChatBody, await self._read_object(request))
        messages, model = read_messages(chat), find_model(self._models, chat.model)
        ids, dropped = await asyncio.to_thread(model.encode_chat, messages, max_tokens=chat.sampling.text_limit)
        max_tokens = min(chat.sampling.max_tokens or LARGEST, model.context - len(ids))
        body = CompletionBody(
            model=chat.model, prompt=[*ids], n=chat.n, stream=chat.stream, stream_options=chat.stream_options,
            sampling=chat.sampling.replace(max_tokens=max_tokens),
            logprobs=chat.top_logprobs if chat.logprobs or chat.top_logprobs else None,
        )  # fmt: skip
        return await self._complete(request, body, dropped_turns=dropped)

    async def _complete(
        self, request: Request, body: CompletionBody, *, is_scored_only: bool = False, dropped_turns: int | None = None
    ) -> Response:
        """Submit completions, and answer with all of them, or stream their tokens."""
        deadline, scored = asyncio.get_running_loop().time() + self._config.timeout, []
        model, limit = find_model(self._models, body.model), self._config.max_samples
        completions = await asyncio.to_thread(
            build_completions, model, body, is_scored_only=is_scored_only, max_samples=limit
        )
        if body.echo and body.logprobs is not None:
            for prompt, completion in zip(body.prompts, completions, strict=True):
                score = partial(score_prompt, model, prompt, completion.ids, top=body.logprobs)
                scored.append(await self._compute(request, model, score))
        answer = CompletionAnswer(
            model, body, completions, deadline=deadline, scored=scored, dropped_turns=dropped_turns
        )
        if not is_scored_only:
            model.scheduler.submit(completions)
        if body.stream:
            return _EventStream(answer)
        try:
            return JSONResponse(await self._until_disconnect(request, answer.collect()))
        finally:
            answer.cancel()

    async def _read_object(self, request: Request) -> dict[str, Any]:
        """Read the JSON object of a request; ApiError if it is too large, too slow or no JSON object."""
        limit, content = self._config.max_body, bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    content += part
                    if len(content) > limit:
                        raise ApiError(413, f"the request is larger than {limit:,} bytes", code="request_too_large")
        except TimeoutError:
            raise ApiError(408, "the request was not complete in time") from None
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise invalid(f"the request is not a JSON object in UTF-8: {error}") from None

    async def _until_disconnect(self, request: Request, work: Awaitable[T]) -> T:
        """Await, and cancel if the client leaves or after the time limit; the body has been read."""

        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        tasks = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._config.timeout, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] in done:
                return tasks[0].result()
            raise ClientDisconnect if done else took_too_long()
        except asyncio.CancelledError:
            raise unavailable("the server is ending") from None
        finally:
            for task in tasks:
                task.cancel()


class _EventStream(StreamingResponse):
    """Server-sent events of an answer, which is cancelled if the client leaves."""

    def __init__(self, answer: CompletionAnswer) -> None:
        super().__init__(answer.stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


async def _answer_error(_: Request, error: Exception) -> Response:
    """Return an error in OpenAI's format; no traceback ever reaches a client."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, LMError):
        error = from_lm_error(error)
    elif isinstance(error, RecursionError):
        error = invalid("the request is nested too deeply")
    elif isinstance(error, HTTPException):
        error = ApiError(error.status_code, error.detail, code="not_found", headers=error.headers)
    elif not isinstance(error, ApiError):
        error = unavailable("the server failed; see its log")
    return JSONResponse(error.to_dict(), error.status, headers=error.headers)


class Access:
    """Middleware that checks who may call, and adds security headers.

    Without a token, only requests that name this machine are answered, so that a web page cannot reach the server by
    letting its own name point to it (DNS rebinding). Pages of other origins are refused unless they are allowed.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app, self._config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets are switched off
            await self._app(scope, receive, send)
            return
        path = scope["path"]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
                headers["cross-origin-resource-policy"] = "cross-origin" if self._config.cors else "same-origin"
                headers["cache-control"] = "no-cache" if path in WEB_FILES else "no-store"
                if path in WEB_FILES:
                    headers["content-security-policy"] = _CONTENT_SECURITY_POLICY
            await send(message)

        if error := self._refusal(path, Headers(scope=scope)):
            response = await _answer_error(Request(scope), error)
            await response(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> ApiError | None:
        """Return the error for a request that may not be answered."""
        host, origin, token = headers.get("host", ""), headers.get("origin"), self._config.token
        if token is None and not is_loopback(_split_url(f"//{host}")[0]):
            return ApiError(403, "this server answers to localhost only: the Host header names another", code="host")
        is_allowed = origin is None or {"*", origin} & {*self._config.cors} or _split_url(origin)[1] == host.lower()
        if not is_allowed:
            return ApiError(403, "pages of other origins are refused: set `cors` to allow one", code="origin")
        if token is None or path == "/health" or path in WEB_FILES:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return None
        message, challenge = "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=challenge)


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split_url(url: str) -> tuple[str, str]:
    """Return host name, and host name with port; empty if the URL is malformed."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc.lower()
    except ValueError:
        return "", ""


def build_app(models: Models, config: ServerConfig, *, on_ready: Callable[[], None]) -> Starlette:
    """Build the application; `on_ready` is called when it answers requests."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def dispatch(events: Sequence[tuple[Completion, Event]]) -> None:
            for completion, event in events:
                completion.receive(event)

        def deliver(events: Sequence[tuple[Completion, Event]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(dispatch, events)

        for model in models.values():
            model.scheduler.start(deliver)
        on_ready()
        yield
        for model in models.values():
            await asyncio.to_thread(model.scheduler.stop)

    cors = Middleware(CORSMiddleware, allow_origins=config.cors, allow_methods=["GET", "POST"], allow_headers=["*"])
    handlers: Any = dict.fromkeys(
        [ApiError, LMError, HTTPException, ClientDisconnect, RecursionError, Exception], _answer_error
    )
    return Starlette(
        routes=Endpoints(models, config).routes,
        middleware=[cors, Middleware(Access, config)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )


def bind(config: ServerConfig) -> socket.socket:
    """Bind the server's address, before models are loaded.

    Raises:
        UsageError: others can reach the address, and there is no token.
        InputError: the address is in use, or is none of this machine.
    """
    if config.token is None and not is_loopback(config.host):
        raise UsageError(f"others can reach {config.host}: set a token, or serve to this machine only (127.0.0.1)")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)  # requests wait until the models are loaded
    except (OSError, OverflowError) as error:
        raise InputError(f"{config.host}:{config.port}: {getattr(error, 'strerror', None) or error}") from None
    return listener


def serve(
    runs: Mapping[str, Path],
    config: ServerConfig,
    hardware: HardwareConfig,
    *,
    on_ready: Callable[[str, Sequence[str]], None],
) -> None:
    """Serve models until SIGINT or a termination signal, which is raised again after running requests have ended.

    Args:
        on_ready: called with the URL and the names of the models before the first request.

    Raises:
        InputError: the address cannot be used, or a run is missing or damaged.
        UsageError: the address needs a token.
    """
    with bind(config) as listener:
        models = load_models(runs, hardware, config)
        host, port = listener.getsockname()[:2]

        def start() -> None:
            on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", list(models))

        settings = uvicorn.Config(
            build_app(models, config, on_ready=start), lifespan="on", loop="asyncio", http="h11", ws="none",
            log_config=None, log_level="error", access_log=False, proxy_headers=False, server_header=False,
            date_header=False, backlog=1024, timeout_keep_alive=75, timeout_graceful_shutdown=int(config.drain),
        )  # fmt: skip
        uvicorn.Server(settings).run(sockets=[listener])
