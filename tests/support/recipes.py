"""Run the code of docs/spark/tables.md for jobs of one's own, as a process with Spark's Kafka source and Delta.

`python -m tests.support.recipes SERVERS TOPIC FOLDER` prints one line of JSON with the rows that each stream gave.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from outbox._jars.fetch import fetch
from spark_jobs.runtime.session import DELTA_LOCK, DELTA_SETTINGS, SPARK_LOCK, local_session
from tests.support.spark import SETTINGS

DOCUMENT = Path(__file__).parents[2] / "docs/spark/tables.md"
SECTION = "## Reading topics in a job of your own\n"
OFFSETS_AT_ONCE = 2_000


def recipes(servers: str, topic: str, folder: Path) -> list[str]:
    """Return the section's blocks of Python, with a test's servers, topic and folder."""
    section = DOCUMENT.read_text().partition(SECTION)[2].partition("\n## ")[0]
    text = section.replace('"kafka:9092"', repr(servers)).replace("/data/", f"{folder}/")
    rate = f'"subscribe", "{topic}").option("maxOffsetsPerTrigger", "{OFFSETS_AT_ONCE}")'
    text = text.replace('"subscribe", "orders")', rate)
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def plain(messages: DataFrame, folder: Path) -> Counter[int]:
    """Return how many rows the stream gives of each partition, without any recipe."""
    seen: Counter[int] = Counter()

    def count(batch: DataFrame, _: int) -> None:
        seen.update(row.partition for row in batch.select("partition").collect())

    query = messages.writeStream.foreachBatch(count).option("checkpointLocation", f"{folder}/plain")
    query.trigger(availableNow=True).start().awaitTermination()
    return seen


def merged(spark: SparkSession, space: dict[str, Any], folder: Path) -> list[str]:
    """Return the identities of the table that the recipe's query makes."""
    space["query"].processAllAvailable()
    space["query"].stop()
    return [row.identity for row in spark.read.format("delta").load(f"{folder}/messages").collect()]


def main(servers: str, topic: str, folder: Path) -> None:
    jars = [*fetch(SPARK_LOCK), *fetch(DELTA_LOCK)]
    spark = local_session("recipes", jars, {**SETTINGS, **DELTA_SETTINGS})
    first, second = recipes(servers, topic, folder)
    space: dict[str, Any] = {"spark": spark}
    exec(first, space)  # noqa: S102 - the document's own code
    partitions = plain(space["messages"], folder)
    exec(second, space)  # noqa: S102 - as above
    identities = merged(spark, space, folder)
    sys.stdout.write(
        json.dumps({"plain": partitions, "merged": len(identities), "distinct": len(set(identities))}) + "\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
