"""HTTP endpoints of the served models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from lm.config.decoding import TranslationConfig
from lm.config.serving import ServerConfig
from lm.config.settings import build_config
from lm.errors import LMError
from lm.serving import inspection, run_curves
from lm.serving.answers import ChatAnswer, CompletionAnswer
from lm.serving.api_errors import ApiError, from_lm_error, invalid, unavailable
from lm.serving.fields import SAMPLING_FIELDS, TRANSLATION_NAMES, check_known
from lm.serving.http import AccessMiddleware, JsonResponse, read_object
from lm.serving.models import Models, ServedModel
from lm.serving.requests import (
    CompletionRequest,
    build_completions,
    check_unicode,
    parse_chat,
    parse_completion,
    read_flag,
    read_number,
    read_prompts,
    read_sampling,
    read_string,
)
from lm.serving.responses import to_event
from lm.serving.scheduler import Completion
from lm.serving.statistics import Statistics
from lm.serving.streams import EventStream, noticing_disconnect

T = TypeVar("T")
WEB = Path(__file__).parent / "web"
_PATHS = {"/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions", "/score", "/next",
          "/attention", "/tokenize", "/detokenize", "/translate", "/fill", "/runs"}  # fmt: skip
"""Paths that have request counts of their own."""
_MAX_TOP = 1000
_MAX_LINES = 256
_MAX_BEAM = 32
_SAMPLING_NAMES = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "max_tokens", "stop",
                   "seed", *(field.name for field in SAMPLING_FIELDS))  # fmt: skip
_MISSING = {"/v1/responses": "use /v1/completions", "/v1/embeddings": "there are no embeddings"}


class Endpoints:
    """HTTP endpoints of the served models."""

    def __init__(self, models: Models, config: ServerConfig, statistics: Statistics) -> None:
        """Create the endpoints."""
        self._models, self._config, self._statistics = models, config, statistics
        self._is_draining = False

    def drain(self) -> None:
        """Report from now on that the server is shutting down."""
        self._is_draining = True

    def routes(self) -> list[BaseRoute]:
        posts = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/score": self.score,
            "/next": self.next,
            "/attention": self.attention,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/translate": self.translate,
            "/fill": self.fill,
        }
        gets = {
            "/health": self.health,
            "/metrics": self.metrics,
            "/v1/models": self.list_models,
            "/v1/models/{name:path}": self.get_model,
            "/runs": self.list_runs,
            "/runs/{name}/metrics": self.run_metrics,
        }
        return [
            *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        ]

    async def health(self, _: Request) -> Response:
        """Return whether the server accepts requests, and its models."""
        if self._is_draining:
            raise unavailable("the server is shutting down")
        return JsonResponse({"status": "ok", "models": [model.name for model in self._models]})

    async def metrics(self, _: Request) -> Response:
        return Response(self._statistics.format(self._models), media_type="text/plain; version=0.0.4")

    async def list_models(self, _: Request) -> Response:
        return JsonResponse({"object": "list", "data": [model.to_dict() for model in self._models]})

    async def get_model(self, request: Request) -> Response:
        return JsonResponse(self._models.get(request.path_params["name"]).to_dict())

    async def completions(self, request: Request) -> Response:
        body = await self._read_body(request)
        parsed, model = parse_completion(body, self._config), self._models.get(body.get("model"))
        return await self._complete(request, model, parsed, CompletionAnswer)

    async def chat(self, request: Request) -> Response:
        body = await self._read_body(request)
        messages, parsed = parse_chat(body, self._config)
        model = self._models.get(body.get("model"))
        encode = partial(model.encode_chat, messages, max_tokens=parsed.max_tokens, truncates=parsed.truncates)
        return await self._complete(request, model, parsed.with_prompt(*await asyncio.to_thread(encode)), ChatAnswer)

    async def _complete(
        self, request: Request, model: ServedModel, parsed: CompletionRequest, kind: type[CompletionAnswer]
    ) -> Response:
        """Submit completions, and return all of them, or stream their tokens."""
        deadline = asyncio.get_running_loop().time() + self._config.timeout
        with noticing_disconnect(request.receive):
            built = await asyncio.to_thread(build_completions, model, parsed, self._config)
            async with _time_limit(deadline):
                echoed = await self._score_prompts(model, parsed, built)
            stream = EventStream(model.scheduler, built if parsed.max_tokens else ())
            if parsed.max_tokens:
                model.scheduler.submit(built)
            answer = kind(model, parsed, built, stream=stream, echoed=echoed, statistics=self._statistics)
            if parsed.is_stream:
                return _EventStreamResponse(answer.events, stream, deadline)
            try:
                async with _time_limit(deadline):
                    return JsonResponse(await answer.collect())
            finally:
                stream.close()

    async def _score_prompts(
        self, model: ServedModel, request: CompletionRequest, completions: Sequence[Completion]
    ) -> list[inspection.ScoredIds | None]:
        """Score the prompts if their log-probabilities are requested."""
        if not request.echo or request.logprobs is None:
            return [None] * len(completions)
        score = partial(inspection.score_prompt, model, top=request.logprobs)
        prompts = zip(request.prompts, completions, strict=True)
        return [await _compute(model, partial(score, prompt, completion.ids)) for prompt, completion in prompts]

    async def score(self, request: Request) -> Response:
        body = await self._read_body(request, "text", "top")
        model, text = self._models.get(body.get("model")), read_string(body, "text")
        top = read_number(body, "top", 5, maximum=_MAX_TOP)
        text = model.normalize(text)
        model.decoder  # noqa: B018 (raises the error for a model of another kind)
        self._check_length(len(await _encode(model, text)), "text")
        return await self._compute_response(request, model, lambda: inspection.score(model, text, top=top))

    async def next(self, request: Request) -> Response:
        body = await self._read_body(request, "prompt", "top", *_SAMPLING_NAMES)
        model, settings = self._models.get(body.get("model")), read_sampling(body)
        (prompt, *others) = read_prompts(body)
        if others:
            raise invalid("give one prompt", param="prompt")
        top = read_number(body, "top", 40, minimum=1, maximum=_MAX_TOP)
        generator = model.generator(settings)
        text = model.normalize(prompt) if isinstance(prompt, str) else prompt
        try:
            ids = await asyncio.to_thread(generator.encode, text)
        except LMError as error:
            raise from_lm_error(error) from None
        self._check_length(len(ids), "prompt")
        return await self._compute_response(
            request, model, lambda: inspection.next_tokens(model, generator, ids, top=top)
        )

    async def attention(self, request: Request) -> Response:
        body = await self._read_body(request, "text", "target", "to", "layer", "head")
        model, text = self._models.get(body.get("model")), read_string(body, "text")
        target = None if body.get("target") is None else read_string(body, "target")
        to = None if body.get("to") is None else read_string(body, "to")
        layer, head = (read_number(body, name, 0, minimum=1) or None for name in ("layer", "head"))
        text = model.normalize(text)
        self._check_length(len(await _encode(model, text)), "text")
        return await self._compute_response(
            request, model, lambda: inspection.attention(model, text, target, to=to, layer=layer, head=head)
        )

    async def tokenize(self, request: Request) -> Response:
        body = await self._read_body(request, "text")
        model, text = self._models.get(body.get("model")), read_string(body, "text")
        try:
            return JsonResponse(await asyncio.to_thread(inspection.tokenize, model, text))
        except LMError as error:
            raise from_lm_error(error) from None

    async def detokenize(self, request: Request) -> Response:
        body = await self._read_body(request, "tokens")
        model, tokens = self._models.get(body.get("model")), body.get("tokens")
        size = model.tokenizer.vocab_size
        if not isinstance(tokens, list) or not all(
            isinstance(token, int) and not isinstance(token, bool) for token in tokens
        ):
            raise invalid("tokens must be a list of IDs", param="tokens")
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise invalid(f"there is no token {wrong!r}; IDs go from 0 to {size - 1}", param="tokens")
        text = await asyncio.to_thread(model.tokenizer.decode, tokens, skip_special=False)
        return JsonResponse({"text": text})

    async def translate(self, request: Request) -> Response:
        body = await self._read_body(request, "text", "to", "alignments", *TRANSLATION_NAMES)
        model, lines = self._models.get(body.get("model")), body.get("text")
        if not model.loaded.model.config.translates:
            raise model.wrong_kind("translate")
        if model.loaded.model.config.syntax != "none":
            raise invalid(f"model {model.name!r} reads dependency trees, which the server has not", param="model")
        lines = lines.split("\n") if isinstance(lines, str) else lines
        if not isinstance(lines, list) or not all(isinstance(line, str) and "\n" not in line for line in lines):
            raise invalid("text must be a text, or a list of lines", param="text")
        if not 1 <= len(lines) <= _MAX_LINES:
            raise invalid(f"there are {len(lines)} lines; between 1 and {_MAX_LINES} are allowed", param="text")
        lines = [check_unicode(line, "text") for line in lines]
        to = None if body.get("to") is None else read_string(body, "to")
        values = {name: body[name] for name in TRANSLATION_NAMES if name in body}
        try:
            config = build_config(TranslationConfig, values)
        except LMError as error:
            raise from_lm_error(error) from None
        if config.beam > _MAX_BEAM:
            raise invalid(f"beam must be at most {_MAX_BEAM}", param="beam")
        alignments = read_flag(body, "alignments")
        return await self._compute_response(
            request, model, lambda: inspection.translate(model, lines, config, to=to, alignments=alignments)
        )

    async def fill(self, request: Request) -> Response:
        body = await self._read_body(request, "text", "top_k")
        model, text = self._models.get(body.get("model")), read_string(body, "text")
        top = read_number(body, "top_k", 5, minimum=1, maximum=_MAX_TOP)
        return await self._compute_response(request, model, lambda: inspection.fill(model, text, top=top))

    async def list_runs(self, _: Request) -> Response:
        return JsonResponse(await asyncio.to_thread(run_curves.list_runs, self._config.runs))

    async def run_metrics(self, request: Request) -> Response:
        name, first = request.path_params["name"], request.query_params.get("from", "0")
        if not first.isdecimal() or len(first) > 18:
            raise invalid("from must be a step", param="from")
        return JsonResponse(await asyncio.to_thread(run_curves.read_metrics, self._config.runs, name, int(first)))

    async def _read_body(self, request: Request, *names: str) -> Mapping[str, Any]:
        """Read the JSON body of a request; with names of fields, no others are allowed."""
        body = await read_object(request, self._config.max_body)
        if names:
            check_known(body, ("model", *names))
        return body

    def _check_length(self, tokens: int, name: str) -> None:
        if tokens > self._config.max_length:
            raise invalid(
                f"{tokens} tokens are more than the server allows, {self._config.max_length}", param=name,
                code="context_length_exceeded",
            )  # fmt: skip

    async def _compute_response(self, request: Request, model: ServedModel, compute: Callable[[], Any]) -> Response:
        """Compute a value in the model's scheduler and return it as JSON."""
        deadline = asyncio.get_running_loop().time() + self._config.timeout
        with noticing_disconnect(request.receive):
            async with _time_limit(deadline):
                value = await _compute(model, compute)
            return await asyncio.to_thread(JsonResponse, value)


async def _compute(model: ServedModel, compute: Callable[[], T]) -> T:
    return await asyncio.wrap_future(model.scheduler.compute(compute))


async def _encode(model: ServedModel, text: str) -> list[int]:
    try:
        return await asyncio.to_thread(model.tokenizer.encode, text)
    except LMError as error:
        raise from_lm_error(error) from None


@contextlib.asynccontextmanager
async def _time_limit(deadline: float) -> AsyncIterator[None]:
    """Within the context, ApiError once the deadline of the loop's clock has passed."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise unavailable("the request took too long", retry=False) from None


class _EventStreamResponse(Response):
    """Server-sent events, until the last one, an error or the deadline; the client may leave."""

    def __init__(self, events: Callable[[], AsyncIterator[bytes]], stream: EventStream, deadline: float) -> None:
        """Create the response.

        Args:
            stream: closed at the end.
            deadline: of the event loop's clock.
        """
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._stream, self._deadline = events, stream, deadline

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            with noticing_disconnect(receive):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    async with _time_limit(self._deadline):
                        async for event in self._events():
                            await send({"type": "http.response.body", "body": event, "more_body": True})
                except ApiError as error:
                    await send({"type": "http.response.body", "body": to_event(error.body), "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._stream.close()


def build_app(
    models: Models, config: ServerConfig, *, on_start: Callable[[], Awaitable[None]]
) -> tuple[AccessMiddleware, Endpoints]:
    """Build the application.

    Args:
        on_start: called in the event loop before the first request.
    """
    statistics = Statistics(_PATHS)
    endpoints = Endpoints(models, config, statistics)

    @contextlib.asynccontextmanager
    async def lifespan(_: ASGIApp) -> AsyncIterator[None]:
        await on_start()
        yield
        await asyncio.to_thread(models.stop)

    async def not_found(scope: Scope, _: Receive, __: Send) -> None:
        hint = f": {_MISSING[scope['path']]}" if scope["path"] in _MISSING else ""
        raise ApiError(404, f"there is no {scope['path'][:80]}{hint}", code="not_found")

    router = Router(endpoints.routes(), redirect_slashes=False, default=not_found, lifespan=lifespan)
    files, static = list_web_files(), StaticFiles(directory=WEB, html=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"] in files
        await (static if is_file else router)(scope, receive, send)

    return AccessMiddleware(app, config, statistics, public_paths=files), endpoints


def list_web_files() -> set[str]:
    """Return the paths of the web interface."""
    return {"/", *(f"/{path.relative_to(WEB).as_posix()}" for path in WEB.rglob("*") if path.is_file())}
