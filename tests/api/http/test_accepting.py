import asyncio
import socket
from contextlib import ExitStack

import pytest
import uvloop

from app.api.http.connection import MAX_ACCEPTED_PER_TURN, BurstAcceptor

CALLERS = 200


class Counted(asyncio.Protocol):
    def __init__(self, opened):
        self.opened = opened

    def connection_made(self, transport):
        self.opened.append(transport)


def listening_socket(stack):
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=CALLERS))
    listening.setblocking(False)
    return listening


def callers_at(listening, stack):
    """Established connections that wait in the backlog to be accepted."""
    for _ in range(CALLERS):
        caller = stack.enter_context(socket.socket())
        caller.connect(listening.getsockname())


async def turns_until_all_are_open(opened):
    for turn in range(2 * CALLERS):
        if len(opened) == CALLERS:
            return turn
        await asyncio.sleep(0)
    pytest.fail(f"{len(opened)} of {CALLERS} are open after {2 * CALLERS} turns")


async def turns_with_bursts():
    """Turns of the loop until its server with the acceptor has opened all of them."""
    opened: list[asyncio.Transport] = []
    with ExitStack() as stack:
        listening = listening_socket(stack)
        callers_at(listening, stack)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Counted(opened), sock=listening)
        acceptor = BurstAcceptor(lambda: Counted(opened))
        acceptor.start(server.sockets)
        turns = await turns_until_all_are_open(opened)
        acceptor.stop()
        server.close()
        for transport in opened:
            transport.abort()
        await asyncio.sleep(0)
    return turns


def test_connections_that_wait_are_opened_within_few_turns_of_the_loop():
    few = 10 + CALLERS // MAX_ACCEPTED_PER_TURN
    assert uvloop.run(turns_with_bursts()) <= few


async def number_opened_after_stop():
    opened: list[asyncio.Transport] = []
    with ExitStack() as stack:
        listening = listening_socket(stack)
        acceptor = BurstAcceptor(lambda: Counted(opened))
        acceptor.start([listening])
        acceptor.stop()
        callers_at(listening, stack)
        for _ in range(10):
            await asyncio.sleep(0)
    return len(opened)


def test_a_stopped_acceptor_opens_nothing():
    assert uvloop.run(number_opened_after_stop()) == 0
