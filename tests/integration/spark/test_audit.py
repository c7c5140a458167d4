"""`outbox audit` on a real Kafka and Postgres, with relay and checker: what is right is proven, what is wrong found."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._postgres.callback_table import CallbackTable
from outbox._service.exit_codes import Exit
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, SERVICE_HEADER
from outbox.settings import TableNames
from spark_jobs import audit as audit_module
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.runtime.session import SPARK_LOCK
from tests.support.auditing import GRACE_MS, QUICK, ROLLED_BACK, TRANSACTIONS, Audited, findings_of, now, summary_of
from tests.support.harness import Site, wait_until
from tests.support.servers import Servers
from tests.support.shop import Shop


@pytest.fixture
def audited(servers: Servers, tmp_path: Path) -> Iterator[Audited]:
    """A site on which everything went right, for one test: some tests spoil theirs."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        site.create("orders", "stock")
        site.relay(extra=QUICK)
        site.checker(extra=QUICK)
        made = Audited(site, tmp_path)
        made.tell()
        yield made


@pytest.mark.long
def test_a_window_in_which_all_went_right_is_proven(audited: Audited) -> None:
    report = audited.clean()
    summary = summary_of(report)
    verdicts = summary["verdicts"]
    assert verdicts["DELIVERED_ONCE"] + verdicts.get("LATE", 0) == 2 * TRANSACTIONS
    assert verdicts["ROLLED_BACK"] == ROLLED_BACK
    assert summary["messages"] == sum(end - start for start, end in summary["spans"]["halves"].values())
    assert summary["incomplete"] == {}
    assert {share["topic"] for share in summary["shares"]} == {audited.site.topic(name) for name in ("orders", "stock")}
    page = (report / "report.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert findings_of(report) == {}


@pytest.mark.long
def test_a_transaction_that_hangs_in_a_real_topic_leaves_it_unproven(audited: Audited) -> None:
    topic = audited.site.topic("orders")
    with audited.site.open_transaction(topic, 0):
        report = audited.run("hanging", "--topics", topic, code=Exit.UNPROVABLE)
    assert "a Kafka transaction stays open in partition 0" in summary_of(report)["incomplete"][topic]


@pytest.mark.long
def test_what_somebody_did_by_hand_is_found(audited: Audited) -> None:
    records, expected = audited.records(), {}
    first, second, third = (audited.told[number] for number in (0, 2, 4))

    forged = f"{uuid.uuid4()}/0"
    origin = dict(records[first.message_id].headers)[ORIGIN_HEADER]
    headers = {MESSAGE_ID_HEADER: forged, SERVICE_HEADER: "orders", ORIGIN_HEADER: origin}
    audited.produce(audited.site.topic("orders"), b"key", b"forged", headers.items())
    expected[forged] = Verdict.PHANTOM

    audited.execute("DELETE FROM {site.transaction} WHERE transaction_id = %s", second.transaction_id)
    expected |= dict.fromkeys((second.message_id, audited.told[3].message_id), Verdict.PHANTOM)

    copied = records[third.message_id]
    audited.produce(copied.topic, copied.key, copied.value, copied.headers)
    expected[third.message_id] = Verdict.DUPLICATE

    invented = str(uuid.uuid4())
    audited.execute(
        "INSERT INTO {site.transaction} SELECT %s::uuid, service, state, channel, half_topic_id, half_partition,"
        " first_offset, last_offset, '7', created_at FROM {site.transaction} WHERE transaction_id = %s",
        invented,
        first.transaction_id,
    )
    expected[f"{invented}/7"] = Verdict.ROW_WITHOUT_HALF

    report = audited.run("planted", code=Exit.FINDINGS)
    assert findings_of(report) == expected
    assert summary_of(report)["outcome"] == "FINDINGS"
    assert forged.partition("/")[0] in (report / "report.html").read_text()


@pytest.mark.long
def test_what_was_purged_is_not_proven_by_spark_submit(audited: Audited) -> None:
    spans = summary_of(audited.clean())["spans"]
    audited.execute("DELETE FROM {site.transaction}")
    for partition, (_, end) in spans["halves"].items():
        audited.execute(
            "INSERT INTO {site.meta} VALUES (%s, %s)", f"purged/{spans['half_topic_id']}/{partition}", str(end)
        )
    jars = ",".join(map(str, fetch(SPARK_LOCK)))
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--jars", jars]
    arguments = audited.arguments("purged")
    java = {"JAVA_HOME": str(spark_java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    report = audited.finish(
        [*submit, str(audit_module.__file__), *arguments], "purged", Exit.UNPROVABLE, PATH=os.environ["PATH"], **java
    )
    summary = summary_of(report)
    assert set(summary["verdicts"]) == {Verdict.UNPROVABLE}
    assert summary["spans"]["halves"] == spans["halves"]


@pytest.mark.long
def test_records_that_are_gone_leave_their_topic_unproven(audited: Audited) -> None:
    topic = audited.site.topic("stock")
    audited.site.delete_records(topic, *range(3))
    summary = summary_of(audited.run("gone", code=Exit.UNPROVABLE))
    assert set(summary["verdicts"]) & {Verdict.TORN, Verdict.LOST} == set(), "somebody deleted them by hand"
    assert summary["verdicts"][Verdict.UNPROVABLE] > 0
    assert list(summary["shortened"]) == [topic]
    assert summary["incomplete"] == {}


@pytest.mark.long
def test_what_is_on_its_way_is_neither_lost_nor_made_up(site: Site, tmp_path: Path) -> None:
    site.create("orders", "stock")
    audited = Audited(site, tmp_path, start=now())
    with Shop(site) as shop, Session(shop.engine) as open_session:
        with shop.session() as session:
            shop.publish(session, "orders", "committed, and no relay delivers it", "key")
        message = Message(site.topic("stock"), "its local transaction is open", "key")
        shop.outbox.publish(open_session, message, eager=True)
        wait_until(lambda: len(site.halves()) == 2)
        audited.end = now() + 1
        wait_until(lambda: now() > audited.end + GRACE_MS)
        report = audited.run("early", code=Exit.FINDINGS)
        open_session.rollback()
    assert summary_of(report)["verdicts"] == {Verdict.DANGLING: 2}


@pytest.mark.long
def test_a_timestamp_to_come_hides_nothing_on_a_topic_with_the_brokers_time(site: Site, tmp_path: Path) -> None:
    site.create()
    site.create_topic("due", 1, {"message.timestamp.type": "LogAppendTime"})
    site.relay(extra=QUICK)
    audited, due = Audited(site, tmp_path, start=now()), now() + 3_600_000
    with Shop(site) as shop, shop.session() as session:
        shop.outbox.publish(session, Message(site.topic("due"), "in an hour", "key", timestamp=due))
    site.wait_visible(1, "due")
    site.wait_settled()
    audited.end = now() + 1
    wait_until(lambda: now() > audited.end + GRACE_MS)
    assert summary_of(audited.run("due", code=Exit.OK))["verdicts"] == {Verdict.DELIVERED_ONCE: 1}


@pytest.mark.long
def test_an_audit_asks_the_database_of_each_service(site: Site, tmp_path: Path) -> None:
    site.create("orders")
    site.relay(extra=QUICK)
    audited, bank_tables = Audited(site, tmp_path, start=now()), TableNames("public", f"{site.name}_bank")
    with site.connect() as connection:
        CallbackTable(bank_tables).create(connection)
    with (
        Shop(site) as shop,
        HalfOutbox("bank", site.kafka(), channel=site.name, tables=bank_tables) as bank,
        Session(shop.engine) as first,
        Session(shop.engine) as second,
    ):
        shop.publish(first, "orders", "of the shop", "key")
        transfer = bank.publish(second, Message(site.topic("orders"), "of the bank", "key"))
        first.commit()
        second.commit()
        site.wait_visible(2, "orders")
    site.wait_settled()
    audited.end = now() + 1
    wait_until(lambda: now() > audited.end + GRACE_MS)
    databases = {
        service: {"dsn": site.postgres_url, "services": [service], "table_prefix": tables.prefix}
        for service, tables in {"orders": site.tables, "bank": bank_tables}.items()
    }
    settings = {"OUTBOX_POSTGRES_URL": None, "OUTBOX_DATABASES": json.dumps(databases)}
    proven = summary_of(audited.run("both", code=Exit.OK, **settings))
    assert proven["verdicts"] == {Verdict.DELIVERED_ONCE: 2}
    site.sql(CallbackTable(bank_tables).compose("DELETE FROM {transaction}"))
    assert findings_of(audited.run("without", code=Exit.FINDINGS, **settings)) == {transfer.message_id: Verdict.PHANTOM}
