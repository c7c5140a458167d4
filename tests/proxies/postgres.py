"""A proxy before Postgres that knows a COMMIT when it sees one; and the lossy one, which lets none of them be heard."""

import asyncio
import threading
from contextlib import ExitStack
from typing import Self
from urllib.parse import urlsplit

from tests.proxies.fault import Fault, FaultKind
from tests.proxies.loop import LoopThread
from tests.proxies.postgres_wire import LENGTH_BYTES, begins_session, is_commit
from tests.proxies.proxy import HOST, Choose, Cut, Link, Proxy, let_rest

_CHUNK = 65_536
_PORT = 5432


class PostgresLink(Link):
    """A link to Postgres. `committed`: whether it ends before the next thing that the server says."""

    committed = False


class PostgresProxy(Proxy[PostgresLink]):
    link = PostgresLink

    def __init__(self, url: str, choose: Choose) -> None:
        self._url = url
        self._commits = asyncio.Event()
        self._commits.set()
        super().__init__(_place(url), 0, choose)

    @property
    def url(self) -> str:
        parts = urlsplit(self._url)
        return parts._replace(netloc=f"{parts.username}:{parts.password}@{HOST}:{self.port}").geturl()

    async def follow(self, url: str) -> None:
        """Lead to another server from now on, after a failover; links to the former one end."""
        await self.lead_to(_place(url))

    async def hold_commits(self, seconds: float) -> None:
        """Let no COMMIT through for a while; of a server that ends meanwhile it never arrives."""
        await let_rest(self._commits, seconds)

    async def _up(self, link: PostgresLink) -> None:
        begun = False
        while not begun:
            message = await _read(link.from_client, b"")
            begun = begins_session(message)
            await link.pass_up(message)
        while True:
            message = await _read(link.from_client, await link.from_client.readexactly(1))
            await self._open.wait()
            if is_commit(message[:1], message[1 + LENGTH_BYTES :]):
                await self._before_commit(link)
            await link.pass_up(message)

    async def _before_commit(self, link: PostgresLink) -> None:
        await self._commits.wait()
        fault = self._choose("COMMIT")
        if fault is None:
            return
        if fault.kind is FaultKind.CUT_BEFORE:
            raise Cut
        await asyncio.sleep(fault.seconds)
        link.committed = fault.kind is FaultKind.CUT_AFTER

    async def _down(self, link: PostgresLink) -> None:
        while data := await link.from_server.read(_CHUNK):
            if link.committed:
                raise Cut
            await link.pass_down(data)


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or HOST, parts.port or _PORT


async def _read(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    """A message, whose type, if it has one, was read."""
    length = await reader.readexactly(LENGTH_BYTES)
    return kind + length + await reader.readexactly(int.from_bytes(length, "big") - LENGTH_BYTES)


class LossyProxy:
    """Passes all between clients and Postgres, but the reply of COMMIT, or (not `arrives`) COMMIT; then cuts."""

    def __init__(self, url: str, *, arrives: bool = True) -> None:
        self.cut = threading.Event()
        self._fault = Fault(FaultKind.CUT_AFTER if arrives else FaultKind.CUT_BEFORE)
        self._url = url
        self._life = ExitStack()

    def _choose(self, _name: str) -> Fault:
        self.cut.set()
        return self._fault

    @property
    def url(self) -> str:
        return self._proxy.url

    def __enter__(self) -> Self:
        loop = self._life.enter_context(LoopThread())
        self._proxy = loop.run(self._start())
        self._life.callback(lambda: loop.run(self._proxy.stop()))
        return self

    async def _start(self) -> PostgresProxy:
        proxy = PostgresProxy(self._url, self._choose)
        await proxy.start()
        return proxy

    def __exit__(self, *_: object) -> None:
        self._life.close()
