"""HTTP around the API: access, limits, errors and security headers, as ASGI applications and helpers of Starlette."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lm.config.serving import ServerConfig
from lm.serving.api_errors import ApiError, invalid, unavailable
from lm.serving.responses import to_json
from lm.serving.statistics import Statistics
from lm.serving.streams import DisconnectedError

_BODY_SECONDS = 30.0
"""The longest that a client may take to send a request."""
_MAX_DEPTH_ERRORS = (ValueError, RecursionError)
_PUBLIC = ("/health",)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class JsonResponse(Response):
    """A JSON object."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def error_response(error: ApiError) -> JsonResponse:
    return JsonResponse(error.body, error.status, headers=error.headers)


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def read_object(request: Request, limit: int) -> Mapping[str, Any]:
    """Read the body of a request, a JSON object; a field that is null, at any depth, is the same as no field.

    Raises:
        ApiError: it is too large, too slow or no JSON object.
    """
    too_large = ApiError(413, f"the request is larger than {limit:,} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "the request was not complete in time", headers={"x-should-retry": "false"}) from None
    except ClientDisconnect:
        raise DisconnectedError from None
    try:
        value = json.loads(bytes(body).decode(), parse_constant=_refuse_constant, object_hook=_drop_nulls)
    except _MAX_DEPTH_ERRORS as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise invalid(f"the request is not JSON in UTF-8: {reason[:200]}") from None
    if not isinstance(value, dict):
        raise invalid("the request must be a JSON object")
    return value


def _drop_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class AccessMiddleware:
    """Middleware that checks access to the API, counts requests and turns errors into JSON.

    Without a token, only requests that name this machine are answered, so that a web page cannot reach the server by
    letting its own name point to it (DNS rebinding). Pages of other origins are refused unless they are allowed.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, statistics: Statistics, *, public_paths: set[str]) -> None:
        """Wrap the API.

        Args:
            public_paths: answered without the token: the files of the web interface.
        """
        self._app, self._config, self._statistics = app, config, statistics
        self._files, self._public = public_paths, {*_PUBLIC, *public_paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets are switched off
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        origin, status = headers.get("origin"), 0
        extra = self._headers(scope, origin)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            self._check(scope, headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await Response(status_code=204)(scope, receive, send_with_headers)
            else:
                scope["app"] = self  # so that Starlette raises what it would answer in plain text
                await self._app(scope, receive, send_with_headers)
        except DisconnectedError:
            status = status or 499
        except ApiError as error:
            await self._send_error(error, status, scope, receive, send_with_headers)
        except HTTPException as error:
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            wrong = ApiError(error.status_code, f"{error.detail}: {scope['method']} {scope['path'][:80]}", code=code,
                             headers=dict(error.headers or {}))  # fmt: skip
            await self._send_error(wrong, status, scope, receive, send_with_headers)
        except Exception:  # no traceback ever reaches a client
            traceback.print_exc(file=sys.stderr)
            failed = unavailable("the server failed; see its log", retry=False)
            await self._send_error(failed, status, scope, receive, send_with_headers)
        finally:
            self._statistics.count_request(scope["path"], status)

    async def _send_error(self, error: ApiError, status: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an error, unless the response has begun."""
        if not status:
            await error_response(error)(scope, receive, send)

    def _headers(self, scope: Scope, origin: str | None) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"cross-origin" if self._config.cors else b"same-origin"),
        ]
        if scope["path"] in self._files:
            headers += [
                (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
                (b"cache-control", b"no-cache"),
            ]
        else:
            headers.append((b"cache-control", b"no-store"))
        if origin is not None and self._allows(origin):
            headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-headers", b"authorization, content-type"),
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-max-age", b"600"),
                (b"vary", b"origin"),
            ]
        return headers

    def _allows(self, origin: str) -> bool:
        return "*" in self._config.cors or origin in self._config.cors

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Raise ApiError unless a request may be answered."""
        host = headers.get("host", "")
        if self._config.token is None and not is_loopback(_host_name(host)):
            raise ApiError(403, "this server answers to localhost only: the Host header names another", code="host")
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin) and _authority(origin) != host.lower():
            raise ApiError(403, "pages of other origins are refused: set `cors` to allow one", code="origin")
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._config.token is None or scope["path"] in self._public or is_preflight:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(token.strip().encode(), self._config.token.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401, "a token is needed: Authorization: Bearer TOKEN", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
