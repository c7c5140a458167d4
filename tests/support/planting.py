"""Faults of every kind, planted on a real site by hand, with the verdicts that an audit must find."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from outbox import Message, Receipt
from outbox.protocol.half import parse_half, real_headers
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.positions import Positions
from outbox.testing import VisibleRecord
from spark_jobs.records.audit_verdicts import Verdict
from tests.support.auditing import GRACE_MS, Audited
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import wait_until
from tests.support.shop import Shop

NO_PARTITION = 99


class Planter:
    """Plants at least one message of each verdict but DELIVERED_ONCE."""

    def __init__(self, audited: Audited, shop: Shop) -> None:
        self.expected: dict[str, Verdict] = {}  # verdicts by message id
        self._audited = audited
        self._site = audited.site
        self._shop = shop
        self._gone: dict[str, OpEntry] = {}
        self._torn = ""

    def begin(self) -> None:
        """What the services have a part in; it is settled before `finish`."""
        self._roll_back()
        self._tear()
        self._discard()
        self._use_a_service_without_a_database()
        self._overtake()
        self._decide_late()

    def finish(self, delivered: Sequence[str]) -> None:
        """What is changed behind the back of the services, once five messages at least are `delivered`."""
        halves = {parse_half(half.headers).transaction_id: half for half in self._site.halves()}
        self._commit_what_was_rolled_back(halves)
        forgotten, doubled, contradicted, *_, last = delivered
        self._audited.execute("DELETE FROM {site.transaction} WHERE transaction_id = %s", _transaction(forgotten))
        self._expect(Verdict.PHANTOM, forgotten)
        self._deliver(halves[_transaction(doubled)])
        self._expect(Verdict.DUPLICATE, doubled)
        self._contradict(halves[_transaction(contradicted)], contradicted)
        self._invent(halves[_transaction(last)])

    def _expect(self, verdict: Verdict, *message_ids: str) -> None:
        self.expected |= dict.fromkeys(message_ids, verdict)

    def _message(self, value: str, topic: str = "orders") -> Message:
        return Message(self._site.topic(topic), value, f"planted {value}")

    def _send(self, entry: OpEntry) -> None:
        self._shop.outbox._sender.send_op(entry)

    def _roll_back(self) -> None:
        """Four messages that are rolled back; three of them get a row by hand later."""
        names = ("rolled back", "lost", "elsewhere", "changed")
        entries = send_halves(self._site, self._shop.outbox, [self._message(name) for name in names])
        self._gone = dict(zip(names, entries, strict=True))
        for entry in entries:
            self._send(
                replace(entry, kind=OpKind.ROLLBACK, positions=Positions.first(0), first_offset=-1, last_offset=-1)
            )
        self._expect(Verdict.ROLLED_BACK, f"{self._gone['rolled back'].transaction_id}/0")

    def _tear(self) -> None:
        """A transaction of two messages that is rolled back; one of them is delivered by hand later."""
        with Session(self._shop.engine) as session:
            receipt = self._publish_eagerly(session, "torn")
            self._publish_eagerly(session, "torn")
            session.rollback()
        self._torn = receipt.transaction_id

    def _discard(self) -> None:
        message = Message(self._site.topic("orders"), "nowhere to go", "planted", partition=NO_PARTITION)
        self._expect(Verdict.DISCARDED, *publish_bulk(self._site, self._shop.outbox, [message]))

    def _use_a_service_without_a_database(self) -> None:
        with self._site.half_outbox("bank") as bank:
            self._expect(Verdict.UNPROVABLE, *publish_bulk(self._site, bank, [self._message("of a bank")]))

    def _overtake(self) -> None:
        """A record that is removed, and written once more behind a later one of its key."""
        for _ in range(2):
            with self._shop.session() as session:
                self._shop.outbox.publish(session, self._message("overtaken", "overtaken"))
        wait_until(lambda: len(self._site.read("overtaken")) == 2)
        first, _ = self._site.read("overtaken")
        topic = self._site.topic("overtaken")
        self._site.delete_records(topic, first.partition, before=first.offset + 1)
        self._audited.produce(topic, first.key, first.value, first.headers, first.timestamp)
        self._expect(Verdict.REORDERED, first.message_id)

    def _decide_late(self) -> None:
        with Session(self._shop.engine) as session:
            receipt = self._publish_eagerly(session, "late")
            time.sleep(2 * GRACE_MS / 1000)  # what is decided within the grace is not late
            session.commit()
        wait_until(lambda: receipt.message_id in {record.message_id for record in self._site.read("orders")})
        self._expect(Verdict.LATE, receipt.message_id)

    def _publish_eagerly(self, session: Session, value: str) -> Receipt:
        """Publish, and wait until the half is stored."""
        before = len(self._site.halves())
        receipt = self._shop.outbox.publish(session, self._message(value), eager=True)
        wait_until(lambda: len(self._site.halves()) > before)
        return receipt

    def _commit_what_was_rolled_back(self, halves: dict[str, VisibleRecord]) -> None:
        for name, verdict in (
            ("lost", Verdict.LOST),
            ("elsewhere", Verdict.WRONG_TARGET),
            ("changed", Verdict.WRONG_CONTENT),
        ):
            entry = self._gone[name]
            self._insert(entry)
            self._expect(verdict, f"{entry.transaction_id}/0")
        self._deliver(halves[self._gone["elsewhere"].transaction_id], topic=self._site.topic("stock"))
        self._deliver(halves[self._gone["changed"].transaction_id], value=b"another")
        last = halves[self._torn]  # of the two the one that was stored last
        first, positions = last.offset - 1, Positions.first(2)
        entry = self._gone["lost"]
        self._insert(
            replace(
                replace(entry, transaction_id=self._torn, partition=last.partition, positions=positions),
                first_offset=first,
                last_offset=last.offset,
            )
        )
        self._deliver(last)
        self._expect(Verdict.TORN, f"{self._torn}/0")
        self._expect(Verdict.CONTRADICTORY_OPS, f"{self._torn}/1")  # its producer's marker says rolled back

    def _insert(self, entry: OpEntry) -> None:
        self._audited.execute(
            "INSERT INTO {site.transaction} (transaction_id, service, state, channel, half_topic_id,"
            " half_partition, first_offset, last_offset, positions) VALUES (%s, 'orders', 'C', %s, %s, %s, %s, %s, %s)",
            entry.transaction_id,
            self._site.name,
            entry.topic_id,
            entry.partition,
            entry.first_offset,
            entry.last_offset,
            str(entry.positions),
        )

    def _deliver(self, half: VisibleRecord, topic: str = "", value: bytes | None = None) -> None:
        """The record of a half, once more or for the first time."""
        control = parse_half(half.headers)
        headers = real_headers(control, half.headers, half.partition, half.offset)
        place = topic or control.topic
        self._audited.produce(place, half.key, value or half.value, headers, half.timestamp)

    def _contradict(self, half: VisibleRecord, message_id: str) -> None:
        entry = self._entry(half, _transaction(message_id))
        self._send(replace(entry, kind=OpKind.ROLLBACK, positions=Positions.first(0), first_offset=-1, last_offset=-1))
        self._expect(Verdict.CONTRADICTORY_OPS, message_id)

    def _invent(self, half: VisibleRecord) -> None:
        """Row, op marker and records at the place of a half, of transactions that never were; one of a stranger."""
        by_row, by_op, by_record, by_stranger = (
            make_transaction_id(1_800_000_000_000, uuid.uuid4().bytes) for _ in range(4)
        )
        self._insert(replace(self._entry(half, by_row), positions=Positions.of([7])))
        self._expect(Verdict.ROW_WITHOUT_HALF, f"{by_row}/7")
        self._send(self._entry(half, by_op))
        self._expect(Verdict.OP_WITHOUT_HALF, f"{by_op}/None")
        control = replace(parse_half(half.headers), transaction_id=by_record)
        headers = real_headers(control, half.headers, half.partition, half.offset)
        self._audited.produce(control.topic, half.key, half.value, headers)
        self._expect(Verdict.PHANTOM, f"{by_record}/0")
        foreign = replace(control, transaction_id=by_stranger, service="stranger")
        headers = real_headers(foreign, half.headers, half.partition, half.offset)
        self._audited.produce(control.topic, half.key, half.value, headers)
        self._expect(Verdict.FOREIGN, f"{by_stranger}/0")

    def _entry(self, half: VisibleRecord, transaction_id: str) -> OpEntry:
        return replace(
            self._gone["lost"],
            transaction_id=transaction_id,
            partition=half.partition,
            positions=Positions.first(1),
            first_offset=half.offset,
            last_offset=half.offset,
        )


def _transaction(message_id: str) -> str:
    return message_id.partition("/")[0]
