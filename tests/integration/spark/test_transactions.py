"""Topics as a job of one's own reads them: whole transactions, whatever comes late, idles or is replayed."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from sqlalchemy.orm import Session

from outbox import Message
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from spark_jobs.kafka_topics import read_topics
from spark_jobs.runtime.session import SPARK_LOCK
from spark_jobs.transactions import transactions
from tests.support.harness import Site
from tests.support.land_job import finish, start
from tests.support.message_rows import relay_settings
from tests.support.schemas import ORDER, SCHEMAS, Schema, decoder, new_registry
from tests.support.spark import session

pytestmark = pytest.mark.timeout(900)

DOCUMENTS = Path(__file__).parents[3] / "docs/spark"
LONG = timedelta(hours=1)

Found = tuple[str, bool, list[str]]


class Topics:
    """Two topics of one partition, and a stream of their transactions into a Delta table."""

    def __init__(self, site: Site, folder: Path) -> None:
        site.create_topics("orders", "stock", partitions=1)
        self.site = site
        self.names = [site.topic(name) for name in ("orders", "stock")]
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"

    def put(self, topic: str, transaction: int, number: int, count: int, service: str = "shop") -> None:
        """Write a message as the relay does."""
        id_ = f"0192f3a4-5b6c-7d8e-9f00-{transaction:012x}/{number}"
        headers = {"type": "t", "outbox-id": id_, "outbox-service": service, "outbox-count": str(count)}
        value = f"{transaction}/{number}".encode()
        self.site.produce(self.site.topic(topic), value, headers={**headers, "outbox-origin": f"0/{number}"})

    def read(self, *topics: str, batch: bool = False, most: int = 1000) -> DataFrame:
        options = {"maxOffsetsPerTrigger": str(most)}
        servers, names = self.site.bootstrap_servers, topics or self.names
        return read_topics(session(), servers, names, headers=["type"], batch=batch, options=options)

    def run(self, within: timedelta = LONG, most: int = 1000) -> tuple[list[int], list[int]]:
        """Go on with the stream; how many transactions were whole and late in each batch."""
        progress = self.write(transactions(self.read(most=most), within))
        counts = [one["observedMetrics"]["transactions"] for one in progress if one["numInputRows"]]
        return [one["whole"] for one in counts], [one["late"] for one in counts]

    def write(self, frame: DataFrame) -> list[Any]:
        stream = frame.writeStream.format("delta").option("checkpointLocation", str(self.checkpoint))
        query = stream.trigger(availableNow=True).start(str(self.table))
        query.awaitTermination()
        return [json.loads(one.json) for one in query.recentProgress]

    def written(self) -> list[Found]:
        return found_in(session().read.format("delta").load(str(self.table)))


def found_in(frame: DataFrame) -> list[Found]:
    values = f.transform("messages", lambda one: f.decode(one["value"], "UTF-8")).alias("values")
    return sorted((row.service, row.whole, row["values"]) for row in frame.select("service", "whole", values).collect())


@pytest.fixture
def topics(site: Site, tmp_path: Path) -> Topics:
    return Topics(site, tmp_path)


def test_a_transaction_comes_once_when_its_last_message_is_there(topics: Topics) -> None:
    topics.put("orders", 1, 1, 2)
    topics.put("orders", 2, 0, 1)
    topics.site.produce(topics.names[0], b"plain")
    assert topics.run() == ([2], [0])
    topics.put("orders", 3, 0, 2)  # the other topic is idle
    assert topics.run() == ([0], [0])
    topics.put("stock", 1, 0, 2)
    topics.put("stock", 3, 1, 2)
    topics.put("stock", 4, 0, 2)
    assert topics.run() == ([2], [0])
    whole = [("", True, ["plain"]), ("shop", True, ["1/0", "1/1"]), ("shop", True, ["2/0"])]
    assert topics.written() == [*whole, ("shop", True, ["3/0", "3/1"])]
    last = max((topics.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for file in (last, last.with_name(f".{last.name}.crc")):
        file.unlink()  # as if it was killed before
    topics.put("stock", 4, 1, 2)
    topics.run()
    assert topics.written() == [*whole, ("shop", True, ["3/0", "3/1"]), ("shop", True, ["4/0", "4/1"])]
    assert found_in(transactions(topics.read(batch=True))) == topics.written()
    [message] = session().read.format("delta").load(str(topics.table)).where("messages[0].value = X'312F30'").collect()
    first = message.messages[0]
    assert (first.topic, first.type, first.user_headers) == (topics.names[1], "t", {"type": b"t"})
    [read] = topics.read(batch=True).where(f"message_id = '{first.message_id}'").collect()
    assert first.timestamp == read.timestamp


@pytest.mark.long
def test_what_comes_late_is_not_whole_and_counted(topics: Topics) -> None:
    """A bucket is looked at when messages come for it, at least four times; a batch finds the transaction whole."""
    for topic, number in (("orders", 0), ("stock", 1)):
        topics.put(topic, 1, number, 2)
        for other in range(4):
            topics.put(topic, 1, other, 9, service=topic)
        whole, late = topics.run(timedelta(0), most=1)
        assert (whole, late) == ([0] * 5, [number, 0, 0, 0, 1])
    assert [one for one in topics.written() if one[0] == "shop"] == [("shop", False, ["1/0"]), ("shop", False, ["1/1"])]
    assert ("shop", True, ["1/0", "1/1"]) in found_in(transactions(topics.read(batch=True)))


_CONNECT = """
from pyspark.sql import SparkSession
from spark_jobs.kafka_topics import read_topics
from spark_jobs.transactions import transactions

spark = SparkSession.builder.remote("local[1]").config("spark.jars", JARS).getOrCreate()
assert "connect" in type(spark).__module__
stream = transactions(read_topics(spark, SERVERS, NAMES)).writeStream.format("parquet").trigger(availableNow=True)
stream.option("checkpointLocation", FOLDER + "/checkpoint").start(FOLDER + "/stream").awaitTermination()
transactions(read_topics(spark, SERVERS, NAMES, batch=True)).write.parquet(FOLDER + "/batch")
spark.stop()
"""


@pytest.mark.long
def test_topics_and_transactions_are_read_over_spark_connect(topics: Topics, tmp_path: Path) -> None:
    topics.put("orders", 1, 0, 2)
    topics.put("stock", 1, 1, 2)
    space: dict[str, Any] = {"JARS": ",".join(map(str, fetch(SPARK_LOCK))), "SERVERS": topics.site.bootstrap_servers}
    space |= {"NAMES": topics.names, "FOLDER": str(tmp_path)}
    code = "".join(f"{name} = {value!r}\n" for name, value in space.items()) + _CONNECT
    java = {"JAVA_HOME": str(spark_java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    finish(start([sys.executable, "-c", code], java), Exit.OK)
    for form in ("stream", "batch"):
        assert found_in(session().read.parquet(f"{tmp_path}/{form}")) == [("shop", True, ["1/0", "1/1"])]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
def test_the_recipe_of_schemas_decodes_by_id(schema: Schema) -> None:
    client = 'AvroDeserializer(SchemaRegistryClient({"url": "http://registry:8081"}))'
    rows = [("a", schema.encoded(new_registry())), ("b", None)]
    messages = session().createDataFrame(rows, "transaction_id string, value binary")
    space: dict[str, Any] = {"decoder": decoder, "messages": messages}
    exec(code_of("own_job.md", {client: f'decoder("{schema.name}")'}, "mapInPandas"), space)  # noqa: S102 - the document's own code
    assert [tuple(row) for row in space["orders"].collect()] == [("a", *ORDER.values()), ("b", None, None)]


@pytest.mark.long
def test_a_join_of_two_topics_goes_on_when_one_is_idle(topics: Topics) -> None:
    def join() -> None:
        orders, stock = (topics.read(name).select("transaction_id", "message_id") for name in topics.names)
        topics.write(orders.join(stock.withColumnRenamed("message_id", "stock_id"), "transaction_id"))

    for transaction, names in enumerate((["orders", "stock"], ["orders"], ["stock"])):
        for number, name in enumerate(names):
            topics.put(name, transaction, number, 2)
        join()
    assert session().read.format("delta").load(str(topics.table)).count() == 1


@pytest.mark.long
def test_the_job_of_the_document_gathers_what_an_application_publishes(site: Site, tmp_path: Path) -> None:
    site.create("orders", "stock")
    site.create_tables(MessageTable)
    site.relay(extra=relay_settings(site))
    with site.outbox() as outbox, Session(site.engine()) as database:
        for number in range(3):
            outbox.publish(database, Message(site.topic("orders"), b"%d" % number, headers=[("type", b"order")]))
            outbox.publish(database, Message(site.topic("stock"), b"%d" % number))
            database.commit()
    site.wait_visible(6, "orders", "stock")
    given = {"kafka:9092": site.bootstrap_servers, '["orders", "stock"]': str([*map(site.topic, ("orders", "stock"))])}
    code = code_of("own_job.md", {**given, "/data/": f"{tmp_path}/", ".start(": ".trigger(availableNow=True).start("})
    finish(start([sys.executable, "-c", code], {}), Exit.OK)
    cells = json.loads((DOCUMENTS.parents[1] / "examples/transactions.ipynb").read_text())["cells"]
    notebook = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    plots = "\nassert counted.values.sum() == 6\nassert services.values.tolist() == [[3]]\n"
    finish(start([sys.executable, "-c", changed(notebook, given) + plots], {"MPLBACKEND": "Agg"}), Exit.OK)
    found = session().read.format("delta").load(f"{tmp_path}/transactions")
    assert found_in(found) == [("orders", True, [str(number), str(number)]) for number in range(3)]


@pytest.mark.long
def test_the_recipe_of_repeated_ids_keeps_one_row_each(topics: Topics, tmp_path: Path) -> None:
    """Records that no outbox has written are all kept."""
    for number in (0, 1, 0):
        topics.put("orders", number, 0, 1)
        topics.site.produce(topics.names[0], b"plain")
    code = code_of("tables.md", {"/data/": f"{tmp_path}/"}, "query = ")
    space: dict[str, Any] = {"spark": session(), "messages": topics.read(most=4)}
    exec(code, space)  # noqa: S102 - the document's own code
    space["query"].processAllAvailable()
    space["query"].stop()
    found = session().read.format("delta").load(f"{tmp_path}/messages")
    assert (found.count(), found.select("message_id").distinct().count()) == (5, 5)


def code_of(document: str, changes: dict[str, str], holds: str = "") -> str:
    """Return the first code of Python in a document that holds a text, with what is otherwise in a test."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCUMENTS / document).read_text(), re.DOTALL | re.MULTILINE)
    return changed(str(next(block for block in blocks if holds in block)), changes)


def changed(code: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    return code
