"""Errors of the HTTP API, in OpenAI's format."""

from __future__ import annotations

from typing import Any

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.settings import list_settings
from lm.errors import LMError


class ApiError(Exception):
    """An error that a client receives.

    Attributes:
        param: the field that is wrong, if it is one.
        code: for programs, such as "model_not_found".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers or {}

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


_SETTINGS = {"to"} | {each.name for config in (SamplingConfig, TranslationConfig) for each in list_settings("", config)}
"""Settings that are fields of requests."""


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a wrong request."""
    return ApiError(400, message, param=param, code=code)


def from_lm_error(error: LMError) -> ApiError:
    """Return the error for a setting or an input that the library refuses."""
    param = next((word for word in str(error).replace(":", "").split() if word in _SETTINGS), None)
    return invalid(" ".join(str(error).split()), param=param)


def unavailable(message: str, *, retry: bool = True) -> ApiError:
    """Return the error for a server that cannot answer now."""
    return ApiError(503, message, code="unavailable", headers={} if retry else {"x-should-retry": "false"})
