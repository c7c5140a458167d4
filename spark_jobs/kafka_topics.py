"""Topics as a job of one's own reads them, on Spark Classic and Spark Connect.

Keys of state are never null by construction. Spark infers from a join or a filter that a key is not null, but not in a
batch in which a topic has no record, and then ends the query for good, because its state has another schema.
"""

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from outbox._settings.of_jobs import READ_COMMITTED
from outbox.errors import ConfigurationError
from outbox.protocol.names import HEADER_PREFIX, is_topic_name
from spark_jobs.columns import as_text, header_value, outbox_columns

FETCH = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "fetch.max.bytes": str(64 * 1024 * 1024),
}
"""Spark asks the broker twice for offsets around each poll, so polls of 500 records, Kafka's default, are dear."""

PROMISED = {"kafka.isolation.level": READ_COMMITTED, "includeHeaders": "true", "failOnDataLoss": "true"}
"""Only committed records, headers included, and an end with an error when records that were to be read are gone."""


def kafka_options(properties: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source, the same for streams and batches.

    Args:
        properties: Of Kafka's Java client.
    """
    clients = {f"kafka.{name}": value for name, value in {**FETCH, **properties}.items()}
    return {**clients, **PROMISED, "subscribe": ",".join(topics)}


def read_topics(
    spark: SparkSession,
    servers: str,
    topics: Sequence[str],
    *,
    headers: Collection[str] = (),
    batch: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the committed records of topics, from the earliest on, with the columns of the outbox.

    Beside Spark's own columns a record has `user_headers`, a map in which the last of a repeated header counts, and
    `OUTBOX_COLUMNS`. A record that no outbox has written is a transaction of its own: its place, such as `orders/0/17`,
    is its message id and transaction id, its service is empty, and it is the only message. `message_count` is 0 if only
    the header for it cannot be read.

    Args:
        servers: Kafka's bootstrap servers, `host:port`, separated by commas.
        headers: User headers that become columns of their names: text, null if absent or not UTF-8.
        batch: Read what is there now, in place of a stream.
        options: More options of Spark's Kafka source, such as `maxOffsetsPerTrigger` and `kafka.security.protocol`.

    Raises:
        ConfigurationError: A topic is none, a header has the name of another column, or an option would break what is
            promised here.
    """
    if not topics or not all(map(is_topic_name, topics)):
        raise ConfigurationError(f"{list(topics)} are not names of topics that Kafka allows. Name at least one.")
    given = options or {}
    fixed = kafka_options({"bootstrap.servers": servers}, topics)
    if refused := sorted(name for name in given if name in PROMISED.keys() | {"subscribe"}):
        raise ConfigurationError(f"The option {refused[0]} is {fixed[refused[0]]} here. Remove it.")
    reader = (spark.read if batch else spark.readStream).format("kafka")
    records = reader.options(**{"startingOffsets": "earliest", **fixed, **given}).load()
    found = identified(outbox_columns(records).withColumn("user_headers", _user_headers()))
    if taken := sorted(set(headers) & set(found.columns)):
        raise ConfigurationError(f"A header {taken[0]} cannot be a column: there is one. It is in user_headers.")
    # Spark Connect refuses to add no columns.
    return found.withColumns({name: as_text(header_value(name)) for name in headers}) if headers else found


def identified(records: DataFrame) -> DataFrame:
    """Give an id, a service and a number of messages to each record that has none, so that these are never null.

    Args:
        records: A frame with a place and `OUTBOX_COLUMNS`, such as the table of `land`.
    """
    place = f.concat_ws("/", "topic", "partition", "offset")
    only = f.when(f.col("message_id").isNull(), 1).otherwise(0)
    return records.withColumns(
        {
            "message_id": f.coalesce("message_id", place),
            "transaction_id": f.coalesce("transaction_id", place),
            "service": f.coalesce("service", f.lit("")),
            "message_count": f.coalesce("message_count", only),
        }
    )


def _user_headers() -> Column:
    own = f.filter(f.col("headers.key"), lambda name: ~f.startswith(name, f.lit(HEADER_PREFIX)))
    names = f.array_distinct(f.coalesce(own, f.array().cast("array<string>")))
    return f.map_from_arrays(names, f.transform(names, header_value))
