"""`outbox audit` proves messages of table mode, and finds what was done behind the back of the relay (R61)."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.protocol.identifiers import xid_of
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, Channel
from spark_jobs.records.audit_verdicts import Verdict
from tests.support.auditing import GRACE_MS, QUICK, Audited, findings_of, now, summary_of
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, execute, publish, relay_settings, wait_empty
from tests.support.row_statements import SPREAD
from tests.support.shop import Shop

TRANSACTIONS = 8
INVENTED = 900_000
"""Ids of rows that no application has inserted."""

_EVIDENCE = (
    "INSERT INTO {{site.delivered}}"
    " (first_id, batch, ids, xids, starts, xid_range, targets, services, topics, partitions, earliest) SELECT row,"
    " batch, int8multirange(int8range(row, row, '[]')), {xids}, starts, {xid_range}, targets, services, topics,"
    " partitions, earliest FROM {{site.delivered}}, {row} AS row WHERE xids[1]::text = %s"
)
_MORE = _EVIDENCE.format(xids="xids", xid_range="xid_range", row="generate_series(%s, %s)") + " AND topics[1] = %s"
_ROW = (
    " (xid, created_at, partition, service, topic, id{columns}) {overriding} SELECT xid, starts[1], partitions[1],"
    " services[1], topics[1], row{values} FROM {{site.delivered}}, CAST(%s AS xid8) AS xid, CAST(%s AS bigint) AS row"
    " WHERE xids[1]::text = %s LIMIT 1"
)
_XID = "CAST(xid AS text)::bigint"
_COPIES = {
    Verdict.LOST: _EVIDENCE.format(
        xids="ARRAY[xid]",
        xid_range=f"int8range({_XID}, {_XID}, '[]')",
        row="CAST(%s AS xid8) AS xid, CAST(%s AS bigint)",
    )
    + " LIMIT 1",
    Verdict.DANGLING: "INSERT INTO {site.message}"
    + _ROW.format(columns="", values="", overriding="OVERRIDING SYSTEM VALUE"),
    Verdict.DISCARDED: "INSERT INTO {site.discarded}"
    + _ROW.format(columns=", reason, detail", values=", 'TOPIC_MISSING', 'by hand'", overriding=""),
}
"""Rows without a publication, in local transactions that began when another one did."""


def checker(site: Site) -> str:
    """Make a role that has the rights of a checker; its connection string."""
    return site.role("audit", CallbackTable(site.tables).checker_grant, MessageTable(site.tables).checker_grant)


def tell(audited: Audited) -> None:
    """Transactions of both modes: in table mode of two topics each, and some that are rolled back."""
    site = audited.site
    audited.start = now()
    if not site.channel.tables_only:
        with Shop(site) as shop, shop.session() as session:
            shop.publish(session, "orders", "half", "key")
    for number in range(TRANSACTIONS):
        with psycopg.connect(site.postgres_url) as connection:
            publish(connection, site, "orders", [f"key{number % 3}"])
            publish(connection, site, "stock", [f"key{number % 3}"])
            if number % 4 == 3:
                connection.rollback()
    wait_empty(site)
    if not site.channel.tables_only:
        site.wait_settled()
    audited.end = now() + 1
    wait_until(lambda: now() > audited.end + GRACE_MS)


def plant(audited: Audited) -> dict[str, Verdict]:
    """Change what is right, a transaction for each fault; verdicts by message id."""
    records = [
        one for one in audited.records().values() if (dict(one.headers)[ORIGIN_HEADER] or b"").startswith(b"shop/")
    ]
    ids = sorted({_transaction(record.message_id) for record in records})
    forgotten, doubled, torn = ids[:3]
    execute(audited.site, SPREAD)
    audited.execute("DELETE FROM {site.delivered} WHERE xids[1]::text = %s", str(xid_of(forgotten)))
    planted = {one.message_id: Verdict.PHANTOM for one in records if _transaction(one.message_id) == forgotten}

    copied = next(record for record in records if _transaction(record.message_id) == doubled)
    audited.produce(copied.topic, copied.key, copied.value, copied.headers)
    planted[copied.message_id] = Verdict.DUPLICATE

    audited.execute(_MORE, INVENTED, INVENTED + 1, str(xid_of(torn)), audited.site.topic("orders"))
    planted |= {f"{torn}/{INVENTED + number}": Verdict.TORN for number in range(2)}

    for row, (verdict, statement) in enumerate(_COPIES.items(), INVENTED + 10):
        audited.execute(statement, str(xid_of(torn) + row), row, str(xid_of(torn)))
        planted[f"{torn[:-8]}{xid_of(torn) + row:08x}/{row}"] = verdict

    forged = f"{forgotten}/{INVENTED + 20}"
    headers = [(MESSAGE_ID_HEADER, forged.encode()), (ORIGIN_HEADER, f"{SOURCE}/{INVENTED + 20}".encode())]
    audited.produce(audited.site.topic("orders"), b"k", b"v", headers)
    return planted | {forged: Verdict.PHANTOM}


def _transaction(id_: str) -> str:
    return id_.partition("/")[0]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tables_only", [False, True])
def test_messages_of_table_mode_are_proven_and_faults_are_found(
    site: Site, tmp_path: Path, *, tables_only: bool
) -> None:
    site.channel = Channel(site.name, tables_only)
    site.create("orders", "stock")
    create(site)
    relay = site.relay(extra={**relay_settings(site), **QUICK})
    wait_until(lambda: "Table source taken over" in relay.output(), explain=site.logs)
    audited = Audited(site, tmp_path)
    tell(audited)
    role = {"OUTBOX_POSTGRES_URL": checker(site)}
    summary = summary_of(audited.run("clean", code=Exit.OK, **role))
    quick = summary_of(audited.run("quick", "--quick", code=Exit.OK, **role))["compared"]["quick"]
    assert sum(one["found"] for one in quick) == sum(summary["verdicts"].values())
    late = summary["verdicts"].pop(Verdict.LATE, 0)  # on a busy machine
    assert summary["verdicts"] == {Verdict.DELIVERED_ONCE: 2 * TRANSACTIONS * 3 // 4 - late + (not tables_only)}
    assert {one["source"] for one in summary["spans"]["tables"].values()} == {SOURCE}
    if tables_only:
        assert f'"rows": {2 * TRANSACTIONS * 3 // 4}' in audited.said
        assert '"halves"' not in audited.said
        return  # faults of rows are found alike
    relay.terminate()  # it would deliver the row that waits
    expected = plant(audited)
    report = audited.run("planted", code=Exit.FINDINGS, **role)
    assert findings_of(report) == expected
    quick = audited.run("quick-planted", "--quick", code=Exit.FINDINGS, **role)
    assert "<td>differs</td>" in (quick / "report.html").read_text()
    page = (report / "report.html").read_text()
    assert SOURCE in page
    assert f"<td>{INVENTED + 10}</td>" in page, "a row has no half partition"
