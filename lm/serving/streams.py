"""Events on their way from the schedulers to the clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from lm.serving.api_errors import ApiError
from lm.serving.scheduler import Completion, Event, Scheduler

_MAX_BUFFERED = 16_384
"""Events that a client may lag behind."""


class EventStream:
    """The events of the completions of one request, for the coroutine that writes them to its client.

    The buffer is bounded: a client that reads too slowly is cut off, and the scheduler never waits for it.
    """

    def __init__(self, scheduler: Scheduler, completions: Sequence[Completion]) -> None:
        """Create the stream of completions that are not submitted yet."""
        self._scheduler, self._completions = scheduler, completions
        self._places = {id(completion): index for index, completion in enumerate(completions)}
        self._events: list[tuple[int, Event]] = []
        self._wake = asyncio.Event()
        self._error: ApiError | None = None
        self._is_closed = False
        for completion in completions:
            completion.receive = self._receive

    def _receive(self, completion: Completion, event: Event) -> None:
        if self._is_closed:
            return
        if len(self._events) >= _MAX_BUFFERED:
            event = ApiError(503, "the client reads too slowly", code="too_slow")
        if isinstance(event, ApiError):
            self._error = event
            self.close()
        else:
            self._events.append((self._places[id(completion)], event))
        self._wake.set()

    async def get(self) -> list[tuple[int, Event]]:
        """Wait for events, and return all there are, each with the place of its completion.

        Raises:
            ApiError: a completion failed.
        """
        await self._wake.wait()
        self._wake.clear()
        if self._error is not None:
            raise self._error
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Cancel what is unfinished."""
        if not self._is_closed:
            self._is_closed = True
            unfinished = [completion for completion in self._completions if not completion.is_done]
            if unfinished:
                self._scheduler.cancel(unfinished)


class Delivery:
    """Hands events from the schedulers' threads to the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver in a loop."""
        self._loop = loop

    def __call__(self, events: Sequence[tuple[Completion, Event]]) -> None:
        """Deliver events, in one call of the loop; none after it is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_dispatch, events)


def _dispatch(events: Sequence[tuple[Completion, Event]]) -> None:
    for completion, event in events:
        completion.receive(completion, event)


class DisconnectedError(Exception):
    """The client has closed its connection."""


@contextlib.contextmanager
def noticing_disconnect(receive: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Within the context, after a request's body was read: `DisconnectedError` is raised when the client leaves."""
    task = asyncio.current_task()
    assert task is not None
    is_disconnected = False

    async def watch() -> None:
        nonlocal is_disconnected
        while (await receive())["type"] != "http.disconnect":
            pass
        is_disconnected = True
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    except asyncio.CancelledError:
        if is_disconnected:
            task.uncancel()
            raise DisconnectedError from None
        raise
    finally:
        watcher.cancel()
