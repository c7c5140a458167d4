"""The relay writes the bytes that Debezium writes: the same rows through both, for each converter and type (R59)."""

import json

import pytest

from outbox.testing import read_committed
from tests.support.debezium_cases import CASES, EXAMPLES, ROWS, Case, Form, forms, running_debezium
from tests.support.foreign_tables import run, variables
from tests.support.harness import Site, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def both_sides(site: Site) -> dict[str, tuple[list[Form], list[Form]]]:
    """Insert the rows, and read what both sides have written of them, by case."""
    site.create()
    with site.connect() as connection:
        run(connection, f"CREATE TYPE {site.name}_mood AS ENUM ('sad', 'ok')")
        run(connection, f"CREATE DOMAIN {site.name}_inner AS text")
        run(connection, f"CREATE DOMAIN {site.name}_domain AS {site.name}_inner")
    for case in CASES:
        case.create(site)
    with running_debezium(site, CASES):
        ids = {case.name: case.insert(site) for case in CASES}
        for case in CASES:
            wait_for(site, case.topics(site)[0])
    site.relay(extra=variables({case.name: case.source(site) for case in CASES}))
    return {case.name: sides(site, case, ids[case.name]) for case in CASES}


def wait_for(site: Site, topic: str) -> None:
    wait_until(lambda: topic in site.admin.list_topics(timeout=10).topics, 120, site.logs)  # Debezium makes its own
    wait_until(lambda: len(read_committed(site.kafka(), [topic])) == len(ROWS), 120, explain=site.logs)


def sides(site: Site, case: Case, ids: list[str]) -> tuple[list[Form], list[Form]]:
    debezium, relay = case.topics(site)
    wait_for(site, relay)
    written, ours = (forms(read_committed(site.kafka(), [topic])) for topic in (debezium, relay))
    return [written[id_] for id_ in ids], [ours[id_] for id_ in ids]


def differences(written: Form, ours: Form) -> set[str]:
    """What two records of a row have not in common; without a key any partition will do."""
    parts = {name for name in ("key", "value", "headers") if getattr(written, name) != getattr(ours, name)}
    return parts | ({"partition"} if written.key is not None and written.partition != ours.partition else set())


def test_the_relay_writes_the_bytes_that_debezium_writes(site: Site) -> None:
    found = both_sides(site)
    for example in EXAMPLES:
        forms_of = [side[example.row] for side in found[example.case]]
        assert [form.part(example.part) for form in forms_of] == [example.debezium, example.relay], example
    for case in CASES:
        unlike = set().union(*map(differences, *found[case.name]))
        assert unlike - {"partition"} == set(case.differs), case.name
        assert "partition" not in unlike or "key" in case.differs, case.name
    for written, ours in zip(*found["generated"], strict=True):
        theirs = json.loads(written.value or b"0")
        if isinstance(theirs, str):  # what is neither object nor array is not expanded
            theirs = json.loads(theirs)
        assert without_null(theirs) == without_null(json.loads(ours.value or b"1"))


def without_null(found: object) -> object:
    """Return JSON as Debezium expands it: without fields that are null."""
    return {name: value for name, value in found.items() if value is not None} if isinstance(found, dict) else found
