"""Accepted gaps and retired topics: recorded in a manifest first, then in Spark's checkpoint, whatever dies between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_jobs.landing import batch_writer as batches
from spark_jobs.landing import gaps
from spark_jobs.landing.gaps import GapWriter, catch_up, retire
from spark_jobs.landing.metrics import write_metrics
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import RetireSettings, SinkName
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.manifest import Manifest
from spark_jobs.tables.pairing import way_without
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.table_reader import accepted_gaps
from tests.support.landing import Landing, span
from tests.support.spark import Record, session

IDS = {"orders": "id-of-orders", "stock": "id-of-stock"}
LOST = (Gap("orders", 0, 3, 9),)

_long = partial(pytest.param, marks=pytest.mark.long)


class KilledError(BaseException):
    """In place of SIGKILL: nothing catches it."""


@pytest.fixture(params=[SinkName.PARQUET, _long(SinkName.DELTA)])
def landing(tmp_path: Path, request: pytest.FixtureRequest) -> Landing:
    """One batch of two topics."""
    made = Landing(tmp_path, request.param)
    made.topics = dict(IDS)
    made.restart()
    made.plan(0, 3, stock=2)
    made.land(0, *span(0, 2), Record(0, topic="stock"), Record(1, topic="stock"))
    made.commit(0)
    return made


def checkpoint_of(landing: Landing) -> Checkpoint:
    return Checkpoint(Folder(session(), str(landing.checkpoint)))


def accept(landing: Landing) -> None:
    output, checkpoint = landing.output(), checkpoint_of(landing)
    GapWriter("land", output, checkpoint, landing.sink(output, checkpoint)).accept(LOST, IDS)


def retire_stock(landing: Landing) -> None:
    retire(session(), settings(landing), "stock")


def settings(landing: Landing) -> RetireSettings:
    given = {"output": str(landing.table), "checkpoint": str(landing.checkpoint.parent), "job_id": "checkpoint"}
    return RetireSettings.model_validate(given)


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """The block ends as a process does that is killed at a failpoint."""

    def die(name: str) -> None:
        if name == point:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "failpoint", die)
        patch.setattr(batches, "failpoint", die)
        with pytest.raises(KilledError):
            yield


def manifest(landing: Landing, batch_id: int) -> Manifest:
    return Manifest.parse(landing.manifest(batch_id).read_text())


def test_accepted_gap_moves_the_next_batch_behind_it(landing: Landing) -> None:
    accept(landing)
    found = manifest(landing, 1)
    assert (found.start, found.end) == (manifest(landing, 0).end, {"orders": {"0": 10}, "stock": {"0": 2}})
    assert (found.gaps, found.rows) == (LOST, 0)
    assert accepted_gaps(session(), str(landing.table)) == [*LOST]
    checkpoint = checkpoint_of(landing)
    assert (checkpoint.last_commit(), checkpoint.end(1)) == (1, found.end)
    landing.restart()
    landing.plan(2, 12, stock=2)
    landing.land(2, *span(10, 11))
    assert manifest(landing, 2).start == found.end
    assert [offset for topic, _, offset in landing.places() if topic == "orders"] == [0, 1, 2, 10, 11]


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.long
def test_gap_whose_writer_was_killed_is_caught_up(landing: Landing, *, planned: bool) -> None:
    """A batch that Spark planned before the loss is planned again behind the gap."""
    if planned:
        landing.plan(1, 12, stock=4)
    with killed_at("land.gap_recorded"):
        accept(landing)
    checkpoint = checkpoint_of(landing)
    assert checkpoint.last_commit() == 0
    catch_up(landing.output(), checkpoint)
    assert (checkpoint.last_commit(), checkpoint.end(1)) == (1, manifest(landing, 1).end)
    before = [path.read_bytes() for path in sorted(landing.checkpoint.rglob("*")) if path.is_file()]
    catch_up(landing.output(), checkpoint)
    assert [path.read_bytes() for path in sorted(landing.checkpoint.rglob("*")) if path.is_file()] == before


def test_checkpoint_of_another_query_is_not_caught_up(landing: Landing) -> None:
    accept(landing)
    for name in ("offsets/1", "commits/1"):
        (landing.checkpoint / name).unlink()
    (landing.checkpoint / "metadata").write_text('{"id":"query-2"}')
    catch_up(landing.output(), checkpoint_of(landing))
    assert checkpoint_of(landing).planned(1) is None


def test_rows_that_a_killed_batch_committed_are_landed_before_a_gap(landing: Landing) -> None:
    """Delta tables keep them, so the gap begins behind them; Parquet folders without a manifest are removed."""
    landing.plan(1, 5, stock=2)
    with killed_at("land.records_written"):
        landing.land(1, *span(3, 4))
    landing.restart()
    landing.writer.finish()
    landed = landing.kind is SinkName.DELTA
    assert landing.manifest(1).exists() is landed
    accept(landing)
    found = [offset for topic, _, offset in landing.places() if topic == "orders"]
    assert found == ([0, 1, 2, 3, 4] if landed else [0, 1, 2])
    assert manifest(landing, 2 if landed else 1).gaps == LOST
    if landed:
        assert manifest(landing, 1).rows == 2


def test_retired_topic_leaves_the_checkpoint_and_keeps_its_rows(landing: Landing) -> None:
    retire_stock(landing)
    found = manifest(landing, 1)
    assert (found.end, found.retired) == ({"orders": {"0": 3}}, {"stock": {"0": 2}})
    assert found.topics == {"orders": IDS["orders"]}
    assert checkpoint_of(landing).end(1) == found.end
    with pytest.raises(OutputError, match=r"Topic stock is retired from .* Leave it out of the topics"):
        landing.restart()
    del landing.topics["stock"]
    landing.restart()
    landing.plan(2, 4)
    landing.land(2, *span(3, 3))
    assert len(landing.places()) == 3 + 2 + 1
    retire_stock(landing)
    assert not landing.manifest(3).exists()


def test_retirement_that_was_killed_is_done_by_the_next_run(landing: Landing) -> None:
    with killed_at("land.gap_recorded"):
        retire_stock(landing)
    retire_stock(landing)
    assert checkpoint_of(landing).end(1) == {"orders": {"0": 3}}
    assert not landing.manifest(2).exists()


@pytest.mark.long
def test_retirement_discards_the_rows_of_an_unfinished_batch(landing: Landing) -> None:
    """Without Kafka nobody can say whether they are of the topic that was landed or of a new one."""
    landing.plan(1, 5, stock=3)
    with killed_at("land.records_written"):
        landing.land(1, *span(3, 4), Record(2, topic="stock"))
    retire_stock(landing)
    del landing.topics["stock"]
    landing.restart()
    landing.plan(2, 5)
    landing.land(2, *span(3, 4))
    assert [offset for topic, _, offset in landing.places() if topic == "orders"] == [0, 1, 2, 3, 4]
    assert [offset for topic, _, offset in landing.places() if topic == "stock"] == [0, 1]


@pytest.mark.parametrize(("topic", "complaint"), [("others", "is not landed in"), ("orders", "is the only topic")])
def test_topic_that_cannot_be_retired_is_refused(tmp_path: Path, topic: str, complaint: str) -> None:
    made = Landing(tmp_path)
    made.plan(0, 3)
    made.land(0, *span(0, 2))
    with pytest.raises(OutputError, match=complaint):
        retire(session(), settings(made), topic)
    assert not (made.table / "_retired").exists()


ANOTHER = "begin another output with another checkpoint"


def test_way_without_a_topic_is_open(tmp_path: Path) -> None:
    """`land retire` refuses a topic of no batch and the only one; Spark reads a planned batch with all its topics."""
    made = Landing(tmp_path)

    def way(*topics: str) -> str:
        return way_without(made.output(), checkpoint_of(made), topics)

    assert (way("orders"), way("stock")) == (ANOTHER, "leave stock out of --topics, for nothing of it is landed")
    made.plan(0, 3)
    made.land(0, *span(0, 2))
    assert (way("orders"), way("orders", "stock")) == (ANOTHER, ANOTHER)
    made.topics["more"] = "id-of-more"
    made.restart()
    made.plan(1, 4, more=0)
    assert way("more") == ANOTHER
    made.land(1, *span(3, 3))
    retired = "end the landing of more: stop the job, run outbox land retire more, and leave more out of --topics"
    assert way("more") == f"{retired} from then on"
    new = "leave stock out of --topics, for nothing of it is landed"
    assert way("more", "stock") == f"{retired} from then on, and {new}"


def test_metrics_of_land_count_gaps_also_of_retired_topics(tmp_path: Path) -> None:
    file = tmp_path / "land.prom"
    gaps = (*LOST, Gap("orders", 1, 0, 0), Gap("retired", 0, 5, 6))
    for _ in range(2):
        write_metrics(file, "land", ["orders", "stock"], gaps)
    families = text_string_to_metric_families(file.read_text())
    samples = [sample for family in families for sample in family.samples if sample.name.endswith("_total")]
    found = {(sample.labels["job_id"], sample.labels["topic"]): sample.value for sample in samples}
    assert found == {("land", "orders"): 8, ("land", "stock"): 0, ("land", "retired"): 2}
