"""Events on their way to a client, without a server or a scheduler."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lm.decoding.batching import Finish, Token
from lm.serving.api_errors import ApiError, unavailable
from lm.serving.streams import Delivery, DisconnectedError, EventStream, noticing_disconnect


class Cancelled(list):
    """A scheduler that notes what is cancelled."""

    cancel = list.extend


def completions(n: int) -> list[Any]:
    return [SimpleNamespace(is_done=False, number=number) for number in range(n)]


def test_a_client_gets_all_events_that_have_come_with_the_place_of_their_prompt():
    async def run() -> None:
        first, second = completions(2)
        stream, delivery = EventStream(Cancelled(), [first, second]), Delivery()
        delivery([(first, Token(0, 9, 0.0))])  # nobody listens yet
        delivery.open(asyncio.get_running_loop())
        tokens = [Token(row, 5, -1.0) for row in range(3)]
        delivery([(second, tokens[0]), (first, tokens[1])])
        assert await stream.get() == [(1, tokens[0]), (0, tokens[1])]
        waiting = asyncio.ensure_future(stream.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        delivery([(first, tokens[2])])
        assert await waiting == [(0, tokens[2])]

    asyncio.run(run())


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


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_is_noticed_and_another_cancellation_stays_one(leaves):
    async def run() -> None:
        messages = asyncio.Queue[dict[str, str]]()

        async def work() -> None:
            with noticing_disconnect(messages.get):
                await asyncio.sleep(900)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        messages.put_nowait({"type": "http.request"})
        await asyncio.sleep(0.01)
        assert not task.done()
        if leaves:
            messages.put_nowait({"type": "http.disconnect"})
        else:
            task.cancel()
        with pytest.raises(DisconnectedError if leaves else asyncio.CancelledError):
            await task

    asyncio.run(run())
