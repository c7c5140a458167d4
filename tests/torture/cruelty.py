"""What is done to servers and requests, and how often; what is done to processes is in `processes`."""

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from relay.recovery.transaction_state import partition_of
from tests.proxies.fault import Fault, FaultKind
from tests.proxies.proxy import Proxy
from tests.torture.changes import TableChanges
from tests.torture.copies import CopyCruelty
from tests.torture.database import DatabaseCruelty
from tests.torture.diary import COMMITTED, Diary
from tests.torture.evidence import SOURCE, TOPICS
from tests.torture.leaders import Leaders
from tests.torture.processes import Processes
from tests.torture.restoration import SourceCruelty
from tests.torture.topics import TopicCruelty
from tests.torture.world import BROKERS, World

REQUESTS: dict[str, tuple[FaultKind, ...]] = {
    "EndTxn": (FaultKind.DROP, FaultKind.DELAY, FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER),
    "TxnOffsetCommit": (FaultKind.DROP, FaultKind.DELAY, FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER),
    "Produce": (FaultKind.DROP, FaultKind.DELAY, FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER),
    "COMMIT": (FaultKind.DELAY, FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER),
}
MOMENTS = ("Produce", "AddOffsetsToTxn", "TxnOffsetCommit")
"""Before which request of the next transaction a kept EndTxn is let go."""

_THIN = (20_000, 100_000, 700_000)
"""What a thin line carries, in bytes/s."""

_OUTAGE_SECONDS = (3.0, 15.0)
"""How long Kafka is away as a whole."""

_LATE_SECONDS = (0.0, 0.0, 6.0)
"""How long its client keeps the connection: it breaks at once, or the client gives up first (5 s)."""


class Cruelty:
    """Chooses the faults of a run; `longest`: how many seconds strangers hold something, or the database is away."""

    def __init__(self, world: World, processes: Processes, diary: Diary, chance: random.Random, longest: float) -> None:
        self.faults: Counter[str] = Counter()  # what was done to servers, by name
        self._world = world
        self._processes = processes
        self._diary = diary
        self._chance = chance
        self._database = database = DatabaseCruelty(world, chance, longest)
        self._leaders = Leaders(world.site.admin, [world.site.topic(name) for name in TOPICS])
        self._topics = topics = TopicCruelty(world, processes, chance, self._leaders)
        self._source = source = SourceCruelty(world, processes, chance)
        self._changes = changes = TableChanges(world, processes, source, chance)
        self._copies = copies = CopyCruelty(world, processes, source)
        self._lasting = (database, topics, source, changes, copies)
        self._meanwhile: Counter[str] = Counter()
        # One server of a kind is hurt at a time, beside everything else; tables and topics may be hurt meanwhile.
        self._pool = ThreadPoolExecutor(7, thread_name_prefix="cruelty")
        self._hurt: dict[str, Future[None]] = {}
        self._healing = threading.Event()
        self._kinds: dict[Callable[[], None], float] = {
            processes.kill_one: 5,
            processes.stop_one: 3,
            processes.end_one: 2,
            self._hurt_request: 8,
            self._keep_end_txn: 4,
            self._cut_links: 1,
            self._hold_node: 1,
            lambda: self._hurt_server("Kafka", self._kill_broker): 1,
            lambda: self._hurt_server("Kafka", self._stop_broker): 1,
            lambda: self._hurt_server("Kafka", self._kill_all_brokers): 0.1,
            lambda: self._hurt_server("Kafka", self._stop_all_brokers): 0.4,
            lambda: self._hurt_server("Postgres", database.kill): 0.8,
            lambda: self._hurt_server("Postgres", database.fail_over): 0.4,
            lambda: self._hurt_server("Postgres", database.go_away): 0.2,
            lambda: self._hurt_server("Postgres", database.use_up_connections): 0.3,
            lambda: self._hurt_server("Postgres", database.fill_lock_table): 0.3,
            lambda: self._hurt_server("tables", database.lock): 0.6,
            lambda: self._hurt_server("topics", topics.starve): 0.8,
            lambda: self._hurt_server("line", self._thin_line): 0.5,
            lambda: self._hurt_server("Kafka", topics.drop_offsets): 0.3,
            lambda: self._hurt_server("Kafka", source.drop_progress): 0.2,
            lambda: self._hurt_server("source", source.restore): 0.4,
            lambda: self._hurt_server("source", changes.change): 0.6,
            lambda: self._hurt_server("source", changes.publish_all): 0.1,
            lambda: self._hurt_server("source", copies.serve_a_copy): 0.4,
        }
        if world.loses_commits:  # what is found then is the doing of these failovers, and of nothing else
            self._kinds = {lambda: self._hurt_server("Postgres", database.fail_over_with_a_loss): 1}

    def fault(self) -> None:
        """Do something cruel; an operator looks after the table source meanwhile."""
        self._hurt_server("operator", self._source.operate)
        self._chance.choices(list(self._kinds), list(self._kinds.values()))[0]()

    def _hurt_request(self) -> None:
        name = self._chance.choice(sorted(REQUESTS))
        self._world.armed.arm(name, Fault(self._chance.choice(REQUESTS[name]), self._chance.uniform(0.1, 4)))

    def _keep_end_txn(self) -> None:
        self._world.kafka.moment = self._chance.choice(MOMENTS)
        self._world.armed.arm("EndTxn", Fault(FaultKind.LATE, self._chance.choice(_LATE_SECONDS)))

    def _cut_links(self) -> None:
        self._world.loop.run(self._a_proxy().cut_all())
        self.faults["all connections of a server cut"] += 1

    def _hold_node(self) -> None:
        self._world.loop.start(self._a_proxy().hold(self._chance.uniform(1, 8)))
        self.faults["no request reaches a server"] += 1

    def _a_proxy(self) -> Proxy[Any]:
        return self._chance.choice([*self._world.kafka.nodes, self._world.postgres])

    def _hurt_server(self, name: str, what: Callable[[], None]) -> None:
        if name not in self._hurt or self._hurt[name].done():
            self._raise_failures()
            self._hurt[name] = self._pool.submit(what)

    def _raise_failures(self) -> None:
        for future in self._hurt.values():
            if future.done():
                future.result()

    def _a_broker(self) -> tuple[int, str]:
        """One of the nodes, by its part in the protocol, and the name of that part."""
        channel = self._world.channel
        half_partition = self._chance.randrange(channel.partitions)
        transactional_id, group = channel.channel.transactional_id(half_partition), channel.channel.relay_group
        table_group = channel.channel.table_group(SOURCE)  # the transactional id, too
        parts: dict[str, tuple[str, str | int]] = {
            "transaction coordinator": ("__transaction_state", transactional_id),
            "group coordinator": ("__consumer_offsets", group),
            "transaction coordinator of the table source": ("__transaction_state", table_group),
            "group coordinator of the table source": ("__consumer_offsets", table_group),
            "leader of a half partition": (channel.half.name, half_partition),
            "leader of a real partition": self._chance.choice(self._world.places()),
        }
        part = self._chance.choice(sorted(parts))
        topic, place = parts[part]
        partitions = self._world.site.admin.list_topics(timeout=10).topics[topic].partitions
        number = place if isinstance(place, int) else partition_of(place, len(partitions))
        leader = partitions[number].leader
        return (leader - 1 if leader > 0 else self._chance.randrange(BROKERS)), part

    def _kill_broker(self) -> None:
        node, part = self._a_broker()
        self._world.stack.kafka.kill(node)
        self.faults[f"broker killed: {part}"] += 1
        time.sleep(self._chance.uniform(0, 4))  # how long it is away
        self._world.stack.kafka.start(node)

    def _stop_broker(self) -> None:
        node, part = self._a_broker()
        self._world.stack.kafka.pause(node)
        self.faults[f"broker stopped: {part}"] += 1
        time.sleep(self._chance.uniform(2, 15))  # up to five times its session
        self._world.stack.kafka.resume(node)

    def _kill_all_brokers(self) -> None:
        with self._leaders.kept():
            for node in range(BROKERS):
                self._world.stack.kafka.kill(node)
            self.faults["all brokers killed"] += 1
            self._let_applications_go_on()
            self._world.stack.kafka.start_all()

    def _stop_all_brokers(self) -> None:
        with self._leaders.kept():
            for node in range(BROKERS):
                self._world.stack.kafka.pause(node)
            self.faults["all brokers stopped"] += 1
            self._let_applications_go_on()
            for node in range(BROKERS):
                self._world.stack.kafka.resume(node)

    def _let_applications_go_on(self) -> None:
        """Count what they commit while Kafka is away: those in table mode need it for nothing."""
        before = self._count_committed()
        self._healing.wait(self._chance.uniform(*_OUTAGE_SECONDS))
        self._meanwhile += self._count_committed() - before

    def _count_committed(self) -> Counter[str]:
        return Counter(entry.mode for entry in self._diary.read() if entry.kind == COMMITTED)

    def _thin_line(self) -> None:
        """Let all nodes together take few bytes: the relay's batches time out, and shrink (R34)."""
        rate = self._chance.choice(_THIN)
        self._set_line(rate)
        self.faults[f"a line of {rate / 1000:.0f} kB/s to each node"] += 1
        self._healing.wait(self._chance.uniform(5, 30))
        self._set_line(math.inf)

    def _set_line(self, bytes_per_second: float) -> None:
        for node in self._world.kafka.nodes:
            node.bytes_per_second = bytes_per_second

    def heal(self) -> None:
        """Let nothing more happen, and wait until all servers are there again."""
        self._world.armed.disarm()
        self._end_what_lasts()
        for future in self._hurt.values():
            future.result()
        self._hurt.clear()
        self._healing.clear()
        for each in self._lasting:
            each.hurt_again()

    def _end_what_lasts(self) -> None:
        self._healing.set()
        for each in self._lasting:
            each.heal()

    def operate(self) -> None:
        self._source.operate()

    def deliver_refused(self) -> None:
        """Deliver what was decided in the discard topic while its real topic was away, as an operator does."""
        self._topics.deliver_refused()

    @property
    def is_operated(self) -> bool:
        """Whether the operator has done all that the faults so far ask for."""
        return self._source.is_well

    def found(self) -> list[str]:
        """What contradicts I15 since the last call, now that all is settled."""
        self._changes.end_round()
        return [*self._source.take_found(), *self._copies.take_found()]

    def all_faults(self) -> Counter[str]:
        lasting = sum((each.faults for each in self._lasting), Counter[str]())
        return self.faults + lasting + self._processes.faults + self._world.armed.hits

    def outcomes(self) -> Counter[str]:
        """What came of it, where that is worth counting: kept requests, processes that ended by themselves."""
        late = {f"late EndTxn {outcome}": count for outcome, count in self._world.kafka.late.items()}
        went_on = {f"transactions of mode {mode} while Kafka was away": n for mode, n in self._meanwhile.items()}
        lasting = sum((each.outcomes for each in self._lasting), Counter[str]())
        return self._processes.outcomes + lasting + Counter(late) + Counter(went_on)

    def close(self) -> None:
        self._end_what_lasts()
        self._pool.shutdown()
        self._database.close()
