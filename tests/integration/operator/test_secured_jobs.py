"""The Spark jobs over TLS with a password: the printed rights suffice, and what is beyond them is refused by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox._rules.role_rights import Role
from outbox._service.exit_codes import Exit
from spark_jobs.tables.delta_output import Output
from stack import Stack
from tests.support.auditing import QUICK, ROLLED_BACK, TRANSACTIONS, Audited, findings_of, summary_of
from tests.support.land_job import finish, start
from tests.support.secured import PASSWORD, SecuredSite
from tests.support.spark import session

pytestmark = pytest.mark.long
REAL = ("orders", "stock")


@pytest.fixture
def audited(secured: Stack, tmp_path: Path) -> Iterator[Audited]:
    with SecuredSite(secured.bootstrap_servers, secured.postgres_url, stack=secured) as site:
        site.create(*REAL)
        site.relay(extra=QUICK)
        site.checker(extra=QUICK)
        made = Audited(site, tmp_path)
        made.tell()
        yield made


def _land(site: SecuredSite, folder: Path, topic: str, code: Exit) -> str:
    places = ["--output", str(folder / "table"), "--checkpoint", str(folder / "checkpoint")]
    command = [sys.executable, "-m", "outbox", "land", "--topics", topic, *places]
    return finish(start([*command, "--available-now"], {**site.environment(), **site.for_spark()}), code)


def test_land_reads_the_topics_of_its_rights_and_no_others(audited: Audited, tmp_path: Path) -> None:
    site = _secured(audited)
    orders, stock = map(site.topic, REAL)
    with site.acting(site.user(Role.LAND, topic=[orders])):
        output = _land(site, tmp_path, orders, Exit.OK)
        refused = _land(site, tmp_path / "refused", stock, Exit.CONFIGURATION)
    landed = Output(session(), str(tmp_path / "table")).read().collect()
    assert {row.message_id for row in landed} == {record.message_id for record in site.read("orders")}
    assert len(landed) == TRANSACTIONS
    assert stock in refused
    assert PASSWORD not in output + refused


def test_audit_proves_a_window_with_its_rights(audited: Audited) -> None:
    site = _secured(audited)
    with site.acting(site.user(Role.AUDIT, topic=map(site.topic, REAL))):
        report = audited.run("secured", code=Exit.OK, **site.for_spark())
    verdicts = summary_of(report)["verdicts"]
    assert verdicts["DELIVERED_ONCE"] + verdicts.get("LATE", 0) == 2 * TRANSACTIONS
    assert verdicts["ROLLED_BACK"] == ROLLED_BACK
    assert findings_of(report) == {}


def test_audit_names_the_topic_that_it_may_not_read(audited: Audited) -> None:
    site = _secured(audited)
    with site.acting(site.user(Role.AUDIT, topic=[site.topic("orders")])):
        result = audited.refused("secured", code=Exit.CONFIGURATION, **site.for_spark())
    assert f"lacks rights in Kafka: READ on topic {site.topic('stock')}. Grant them." in result
    assert PASSWORD not in result


def _secured(audited: Audited) -> SecuredSite:
    assert isinstance(audited.site, SecuredSite)
    return audited.site
