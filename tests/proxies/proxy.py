"""A proxy before one server: links of two connections each, passed on message by message."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from tests.proxies.fault import Fault

HOST = "127.0.0.1"
_TICK_SECONDS = 0.02
Choose = Callable[[str], Fault | None]
"""Says what a request of a name meets, if anything."""


class Cut(Exception):  # noqa: N818 - it is no error, it is what was wanted
    """End this link, both its connections."""


class Link:
    """A client's connection and the one that was made to the server for it."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.from_client, self.to_client = client
        self.from_server, self.to_server = server

    async def pass_up(self, message: bytes) -> None:
        self.to_server.write(message)
        await self.to_server.drain()

    async def pass_down(self, message: bytes) -> None:
        if not self.to_client.is_closing():
            self.to_client.write(message)
            await self.to_client.drain()

    def close_client(self) -> None:
        """End the client's connection at once, as a network does: with a reset, without its rest."""
        self.to_client.transport.abort()

    def close(self) -> None:
        self.close_client()
        self.to_server.transport.abort()


async def let_rest(passing: asyncio.Event, seconds: float) -> None:
    """Let nothing pass for a while."""
    passing.clear()
    try:
        await asyncio.sleep(seconds)
    finally:
        passing.set()


LinkT = TypeVar("LinkT", bound=Link)


class Proxy(ABC, Generic[LinkT]):
    link: type[LinkT]

    def __init__(self, target: tuple[str, int], port: int, choose: Choose) -> None:
        self.port = port
        self._target = target
        self._choose = choose
        self._links: set[LinkT] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._serving = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        while self._serving:
            await self.cut_all()
            await asyncio.sleep(_TICK_SECONDS)

    async def cut_all(self) -> None:
        for link in list(self._links):
            link.close()

    async def lead_to(self, target: tuple[str, int]) -> None:
        """Lead new links to another server; those to the former one end."""
        self._target = target
        await self.cut_all()

    async def hold(self, seconds: float) -> None:
        """Let no request through for a while: the server is there, and does not answer."""
        await let_rest(self._open, seconds)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving += 1
        try:
            await self._link(reader, writer)
        finally:
            self._serving -= 1

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(*self._target)
        except OSError:  # it is down, as the client is about to notice
            writer.transport.abort()
            return
        link = self.link((reader, writer), server)
        self._links.add(link)
        try:
            await self._pump(link)
        finally:
            link.close()
            self._links.discard(link)

    async def _pump(self, link: LinkT) -> None:
        tasks = [asyncio.ensure_future(self._up(link)), asyncio.ensure_future(self._down(link))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                with suppress(Cut, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    if isinstance(done, BaseException):
                        raise done

    @abstractmethod
    async def _up(self, link: LinkT) -> None:
        """Pass what the client says, to its end."""

    @abstractmethod
    async def _down(self, link: LinkT) -> None:
        """Pass what the server says, to its end."""
