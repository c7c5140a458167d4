"""Proxies before the nodes of a Kafka cluster; they can keep an EndTxn until the next transaction (KAFKA-17754)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

from tests.proxies.fault import Fault, FaultKind
from tests.proxies.kafka_wire import SIZE_BYTES, KafkaRequest, end_txn_error, parse_request, reply_correlation
from tests.proxies.proxy import HOST, Choose, Cut, Link, Proxy

_LOOK_SECONDS = 0.1
_REPLY_SECONDS = 3.0
_KEPT_SECONDS = 60.0
"""A kept request whose moment never comes is let go after so long."""

RELAYS_ONLY = {"Produce"}
"""Requests that meet a fault only if they belong to a Kafka transaction."""


class KafkaLink(Link):
    cut_at: int | None = None  # number of the request before whose reply the link ends
    kept: Kept | None = None

    def close(self) -> None:
        """End both connections; what was kept is lost."""
        super().close()
        if self.kept is not None:
            self.kept.answered.cancel()


class Kept:
    """A request that its sender holds for lost."""

    def __init__(self, message: bytes, correlation: int, link: KafkaLink, moment: str) -> None:
        self.correlation = correlation
        self.moment = moment  # before which request of its producer it is let go
        self._message = message
        self._link = link
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def let_go(self) -> int | None:
        """Let it go on; the broker's error code, None without an answer."""
        try:
            await self._link.pass_up(self._message)
            return await asyncio.wait_for(asyncio.shield(self.answered), _REPLY_SECONDS)
        except (OSError, TimeoutError, asyncio.CancelledError):  # the link ended meanwhile
            return None
        finally:
            self.answered.cancel()


class KafkaProxies:
    """One proxy for each node; clients that come through one are told of the others only.

    `ports`: for each node: where to listen, and the node's port, as `Kafka.proxy_ports` gives them; `choose`: what a
    request meets, by the name of its API; `moment`: before which request of the next transaction a kept EndTxn is let
    go: `Produce`, `AddOffsetsToTxn` (after its last produce, before its offsets) or `TxnOffsetCommit`.
    """

    def __init__(self, ports: Sequence[tuple[int, int]], choose: Choose) -> None:
        self.moment = "AddOffsetsToTxn"
        self.late: Counter[str] = Counter()  # what became of kept requests: `refused`, `accepted` or `lost`
        self.nodes = [KafkaProxy(self, target, port, choose) for port, target in ports]
        self._kept: dict[str, Kept] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    async def start(self) -> None:
        for node in self.nodes:
            await node.start()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()

    def keep(self, request: KafkaRequest, message: bytes, link: KafkaLink) -> None:
        link.kept = Kept(message, request.correlation, link, self.moment)
        self._kept[request.transactional_id or ""] = link.kept

    async def before(self, request: KafkaRequest) -> None:
        """A request is about to be passed on: the moment of one that was kept may have come."""
        kept = self._kept.get(request.transactional_id or "")
        if kept is not None and kept.moment == request.name:
            del self._kept[request.transactional_id or ""]
            error = await kept.let_go()
            self.late["lost" if error is None else "refused" if error else "accepted"] += 1


class KafkaProxy(Proxy[KafkaLink]):
    link = KafkaLink

    def __init__(self, cluster: KafkaProxies, target: int, port: int, choose: Choose) -> None:
        super().__init__((HOST, target), port, choose)
        self._cluster = cluster
        self.bytes_per_second = math.inf
        """What all its links together carry to the node."""
        self._line = asyncio.Lock()

    async def _up(self, link: KafkaLink) -> None:
        while True:
            size, frame = await _read(link.from_client)
            await self._open.wait()
            async with self._line:
                await self._carry(len(frame))
            await self._request(link, parse_request(frame), size + frame)

    async def _carry(self, size: int) -> None:
        """Take as long as a request of a size, in bytes, takes on the line; the line may get wider meanwhile."""
        while size > 0 and (speed := self.bytes_per_second) < math.inf:
            seconds = min(size / speed, _LOOK_SECONDS)
            await asyncio.sleep(seconds)
            size -= math.ceil(seconds * speed)

    async def _request(self, link: KafkaLink, request: KafkaRequest, message: bytes) -> None:
        await self._cluster.before(request)
        fault = self._fault(request)
        if fault is None:
            await link.pass_up(message)
        elif fault.kind is FaultKind.CUT_BEFORE:
            raise Cut
        elif fault.kind is FaultKind.LATE:
            await self._keep(link, request, message, fault)
        elif fault.kind is not FaultKind.DROP:
            await asyncio.sleep(fault.seconds)
            link.cut_at = request.correlation if fault.kind is FaultKind.CUT_AFTER else None
            await link.pass_up(message)

    def _fault(self, request: KafkaRequest) -> Fault | None:
        if request.name in RELAYS_ONLY and request.transactional_id is None:
            return None
        return self._choose(request.name)

    async def _keep(self, link: KafkaLink, request: KafkaRequest, message: bytes, fault: Fault) -> None:
        """The client loses its connection; the one to the broker stays until the kept request was answered."""
        self._cluster.keep(request, message, link)
        await asyncio.sleep(fault.seconds)
        link.close_client()
        if link.kept is not None:
            await asyncio.wait({link.kept.answered}, timeout=_KEPT_SECONDS)
        raise Cut

    async def _down(self, link: KafkaLink) -> None:
        while True:
            size, frame = await _read(link.from_server)
            number = reply_correlation(frame)
            if number == link.cut_at:
                raise Cut
            kept = link.kept
            if kept is not None and number == kept.correlation and not kept.answered.done():
                kept.answered.set_result(end_txn_error(frame))
            await link.pass_down(size + frame)


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    size = await reader.readexactly(SIZE_BYTES)
    return size, await reader.readexactly(int.from_bytes(size, "big"))
