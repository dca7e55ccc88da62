"""Resumable downloads."""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from lm import locks
from lm.errors import InputError
from lm.text.find import ProgressCallback

PAUSES = (1.0, 3.0)
"""Seconds to wait before each retry without progress."""

TIMEOUT = 30.0
"""Seconds without a byte before the connection is closed."""

_BLOCK_BYTES = 1 << 18
_SERVER_ERROR = 500  # the lowest status of server errors


class _Interrupted(Exception):  # noqa: N818 (caught here, and never an error by itself)
    """A network failure that a retry may fix."""


def download(url: str, part: Path, *, progress: ProgressCallback | None = None) -> None:
    """Download a file, or the rest of it if `part` holds its beginning.

    Args:
        part: the path to write to; it is kept if the download fails, so that another call resumes.

    Raises:
        InputError: the file does not exist, the server cannot be reached, or the connection kept failing.
    """
    furthest, pauses = 0, iter(PAUSES)
    with part.open("ab") as stream:
        _lock(stream, part)
        while True:
            try:
                _transfer(url, stream, progress)
            except _Interrupted as problem:
                if stream.tell() <= furthest:
                    if (pause := next(pauses, None)) is None:
                        raise InputError(_failure_message(url, stream.tell(), str(problem), part.parent)) from None
                    time.sleep(pause)
                furthest = max(furthest, stream.tell())
            else:
                return


def _lock(stream: BinaryIO, part: Path) -> None:
    try:
        locks.try_lock(stream.fileno())
    except BlockingIOError:
        raise InputError(f"{part}: another process is fetching this file; wait for it") from None


def _transfer(url: str, stream: BinaryIO, progress: ProgressCallback | None) -> None:
    """Append the missing bytes over one connection."""
    have = stream.tell()
    response = _request(url, have)
    if response is None:
        return
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT or _first_byte(response) != have:
            have = 0
            stream.seek(0)
            stream.truncate()
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                raise _Interrupted("the server sent another range than requested")
        length = response.headers["Content-Length"]
        total = None if length is None else have + int(length)
        for block in _read_blocks(response):
            stream.write(block)
            have += len(block)
            if progress:
                progress(have, total)
        stream.flush()
        if total is not None and have < total:
            raise _Interrupted("the connection was cut")


def _request(url: str, have: int) -> http.client.HTTPResponse | None:
    """Request a file from byte `have` on; None if it is complete."""
    headers = {"User-Agent": "lm-toolkit", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers),
            timeout=TIMEOUT,
        )
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return _request(url, 0) if _total_bytes(error) not in (have, None) else None
            if error.code >= _SERVER_ERROR or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
                raise _Interrupted(f"the server answers {error.code} {error.reason}") from None
            raise InputError(
                f"{url}: the server answers {error.code} {error.reason}; it may have moved: search for it"
            ) from None
    except urllib.error.URLError as error:
        raise _Interrupted(f"{urlsplit(url).hostname} cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or "the connection was cut") from None
    return response


def _first_byte(response: http.client.HTTPResponse) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers["Content-Range"] or "")
    return int(match[1]) if match else None


def _total_bytes(refusal: urllib.error.HTTPError) -> int | None:
    match = re.match(r"bytes \*/(\d+)", refusal.headers["Content-Range"] or "")
    return int(match[1]) if match else None


def _read_blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(_BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(str(error) or "the connection was cut") from None
        if not block:
            return
        yield block


def _failure_message(url: str, have: int, problem: str, folder: Path) -> str:
    if have:
        return f"{url}: {problem}, {have:,} bytes are there; the same command continues from them"
    return f"{url}: {problem}; is there a network? Or fetch it elsewhere, put it into {folder} and try again"
