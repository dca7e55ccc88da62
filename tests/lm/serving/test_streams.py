"""Events on their way to a client, without a server or a scheduler."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lm.decoding.batching import Finish, Token
from lm.serving.api_errors import ApiError, unavailable
from lm.serving.streams import EventStream


class Cancelled(list):
    """A scheduler that notes what is cancelled."""

    cancel = list.extend


def completions(n: int) -> list[Any]:
    return [SimpleNamespace(is_done=False, number=number) for number in range(n)]


def test_an_error_ends_a_stream_and_cancels_the_prompts_that_are_not_done():
    async def run() -> None:
        several, cancelled = completions(3), Cancelled()
        stream = EventStream(cancelled, several)
        several[0].is_done = True
        several[1].receive(several[1], Token(0, 5, -1.0))
        several[1].receive(several[1], unavailable("a fault"))
        several[2].receive(several[2], Finish(0, "length"))
        with pytest.raises(ApiError, match="a fault"):
            await stream.get()
        assert cancelled == several[1:]
        stream.close()
        assert cancelled == several[1:]

    asyncio.run(run())


def test_a_client_that_reads_too_slowly_is_cut_off():
    """After 16,384 events that it has not read."""

    async def run() -> None:
        (only,), cancelled = completions(1), Cancelled()
        stream, event = EventStream(cancelled, [only]), Token(0, 5, -1.0)
        for _ in range(2**14):
            only.receive(only, event)
        assert len(await stream.get()) == 2**14
        for _ in range(2**14):
            only.receive(only, event)
        assert not cancelled
        only.receive(only, event)
        assert cancelled == [only]
        with pytest.raises(ApiError) as raised:
            await stream.get()
        assert (raised.value.status, raised.value.code) == (503, "too_slow")

    asyncio.run(run())
