"""Records of half, op and discard topic as evidence, read as the relay reads them. Pure.

The forms are those of `outbox.protocol`; the test vectors of docs/vectors.json hold for both.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.discard import MANIFEST_SUFFIX, DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import UUID_LENGTH, UUID_PATTERN
from outbox.protocol.names import (
    FORMAT_VERSION,
    HEADER_PREFIX,
    OP_HEADER,
    OPTIONS_HEADER,
    SERVICE_HEADER,
    TARGET_HEADER,
    TRANSACTION_HEADER,
)
from outbox.protocol.op import RANKED, OpSource
from spark_jobs.records.evidence import HALF, inside, malformed_id, message, overlapping
from spark_jobs.runtime.spans import Span


def header(name: str) -> Column:
    """Return the first value of a header as text; null if it is missing, has none, or is not UTF-8."""
    place = f.array_position(f.col("headers.key"), name)  # from 1; 0: absent, which `get` finds nowhere
    value = f.get(f.col("headers.value"), (place - 1).cast("int"))
    return f.try_validate_utf8(value.cast("string"))


def has_header(name: str) -> Column:
    return f.coalesce(f.array_contains(f.col("headers.key"), name), f.lit(False))


def is_single(name: str) -> Column:
    """Whether no header of this name follows another one of it."""
    keys = f.col("headers.key")
    first, last = f.array_position(keys, name), f.array_position(f.reverse(keys), name)
    return f.coalesce((first == 0) | (first + last == f.size(keys) + 1), f.lit(True))


def content_hash() -> Column:
    """Hash of key, value and the user's own headers, in their order; the same for a half and its record.

    Hashes pass over null, so each part has a flag whether it is null.
    """
    return f.xxhash64(*_content(lambda name: ~f.startswith(name, f.lit(HEADER_PREFIX))))


def record_hash() -> Column:
    """Hash of a record and its place, with all headers in their order; the same in Kafka and in a table of `land`."""
    return f.xxhash64("topic", "partition", "offset", "timestamp", *_content(lambda _: f.lit(True)))


def _content(counts: Callable[[Column], Column]) -> list[Column]:
    parts = f.transform(
        f.col("headers"),
        lambda one: f.when(counts(one["key"]), f.struct(one["key"], one["value"].isNull(), one["value"])),
    )
    key, value = f.col("key"), f.col("value")
    return [key.isNull(), key, value.isNull(), value, parts]


_CONTROL = (TARGET_HEADER, TRANSACTION_HEADER, SERVICE_HEADER, OPTIONS_HEADER)
_NUMBER = "(?:0|[1-9][0-9]{0,14})"
_KEY = "(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})*"
_OPTION = rf"(?:timestamp={_NUMBER}|immunity={_NUMBER}|ordering={_KEY}|unordered|incarnation={UUID_PATTERN})"
_MAX_PARTITION = 2_147_483_647

_VERSION = f"{FORMAT_VERSION};"

_TARGET = r"\A(?!\.{1,2}:)[A-Za-z0-9._-]{1,249}:(?:-1|0|[1-9][0-9]{0,9})\z"
_TRANSACTION = rf"\A{_VERSION}{UUID_PATTERN}/(?:0|[1-9][0-9]{{0,3}})\z"
_SERVICE = rf"\A[A-Za-z0-9._-]{{1,200}};(?:{'|'.join(Truth)})\z"
_OPTIONS = rf"\A(?:{_OPTION}(?:;{_OPTION})*)?\z"


def half_evidence(records: DataFrame, unsettled: Mapping[int, Sequence[range]]) -> DataFrame:
    """Halves, each as a side of its message.

    Args:
        unsettled: Offsets that the relay has not settled, by half partition.
    """
    texts = records.select(
        "*",
        header(TARGET_HEADER).alias("_target"),
        header(TRANSACTION_HEADER).alias("_transaction"),
        header(SERVICE_HEADER).alias("_service"),
        f.when(has_header(OPTIONS_HEADER), f.coalesce(header(OPTIONS_HEADER), f.lit("?")))
        .otherwise("")
        .alias("_options"),
    )
    read = texts.select("*", f.coalesce(_readable(), f.lit(False)).alias("_readable"))
    if any(unsettled.values()):
        marked = read.join(f.broadcast(_offsets(read, unsettled)), ["partition", "offset"], "left")
    else:
        marked = read.withColumn("_unsettled", f.lit(False))
    partition, offset = f.col("partition"), f.col("offset")
    # What is readable has the forms above; cutting it at their separators costs a tenth of what capturing would.
    transaction_id = f.when(f.col("_readable"), f.substring("_transaction", len(_VERSION) + 1, UUID_LENGTH))
    return marked.select(
        f.coalesce(transaction_id, malformed_id(partition, offset)).alias("transaction_id"),
        message(
            side=f.lit(HALF),
            position=f.coalesce(_readable_only(f.substring_index("_transaction", "/", -1)), f.lit("0")),
            topic=_readable_only(f.substring_index("_target", ":", 1)),
            partition=partition,
            offset=offset,
            time=f.col("timestamp"),
            time_type=f.col("timestampType"),
            service=_readable_only(f.substring_index("_service", ";", 1)),
            truth=_readable_only(f.substring_index("_service", ";", -1)),
            target=_readable_only(f.substring_index("_target", ":", -1)),
            ordering=_readable_only(_ordering()),
            content=content_hash(),
            sent=f.coalesce(f.timestamp_millis(_option("timestamp").cast("bigint")), f.col("timestamp")),
            incarnation=_option("incarnation"),
            unsettled=f.coalesce(f.col("_unsettled"), f.lit(False)),
        ),
    )


def _readable() -> Column:
    """Whether the relay can read the control headers: each once, and of its form."""
    target = f.substring_index("_target", ":", -1).try_cast("bigint")
    return (
        f.col("_target").rlike(_TARGET)
        & (target <= _MAX_PARTITION)
        & f.col("_transaction").rlike(_TRANSACTION)
        & f.col("_service").rlike(_SERVICE)
        & reduce(Column.__and__, (is_single(name) for name in _CONTROL))
        & ((f.col("_options") == "") | _options_are_readable())
    )


def _options_are_readable() -> Column:
    """Whether each option is there once, of its form, and none contradicts another."""
    names = f.transform(f.split("_options", ";"), lambda option: f.substring_index(option, "=", 1))
    return (
        f.col("_options").rlike(_OPTIONS)
        & (f.size(f.array_distinct(names)) == f.size(names))
        & ~(f.array_contains(names, "ordering") & f.array_contains(names, "unordered"))
    )


def _offsets(records: DataFrame, runs: Mapping[int, Sequence[range]]) -> DataFrame:
    """Each unsettled place in a row; a checkpoint can name a million of them for a partition."""
    rows = [(partition, run.start, run.stop - 1) for partition, several in runs.items() for run in several]
    frame = records.sparkSession.createDataFrame(rows, "partition int, first bigint, last bigint")
    return frame.select(
        "partition", f.explode(f.sequence("first", "last")).alias("offset"), f.lit(True).alias("_unsettled")
    )


def _ordering() -> Column:
    """Return the ordering key: that of the options, or the message's own; null for none."""
    own = f.when(~f.array_contains(f.split("_options", ";"), "unordered"), f.col("key"))
    return f.coalesce(_decoded(_option("ordering")), own)


def _decoded(text: Column) -> Column:
    """Return the bytes of a percent-encoded key; Spark's own decoder would take them for UTF-8."""
    digits = f.transform(
        f.split(text, "%"),
        lambda part, index: f.when(index == 0, f.hex(part)).otherwise(
            f.concat(f.substring(part, 1, 2), f.hex(f.substring(part, 3, 10_000_000)))
        ),
    )
    return f.when(text.isNotNull(), f.unhex(f.concat_ws("", digits)))


def _option(name: str) -> Column:
    """Return the value of an option; null if it is not given."""
    found = f.regexp_extract("_options", rf"(?:\A|;)({name}=)([^;]*)", 1) != ""
    value = f.regexp_extract("_options", rf"(?:\A|;){name}=([^;]*)", 1)
    return f.when(f.col("_readable") & (f.col("_options") != "") & found, value)


def _readable_only(column: Column) -> Column:
    return f.when(f.col("_readable"), column)


_SOURCE = rf"\A{FORMAT_VERSION};({'|'.join(OpSource)})\z"
_VERDICTS = ".verdict"
"""End of the verdict topic's name, and of no op topic's: a channel's name has no dot."""
_OFFSET = "(?:-1|0|[1-9][0-9]{0,17})"
_ENTRY = (
    rf"\A[CRUD] {UUID_PATTERN} {UUID_PATTERN} (?:0|[1-9][0-9]{{0,8}}) (?:-|[0-9,-]+) {_OFFSET} {_OFFSET} [0-9]{{1,10}}"
    r"(?: .*)?\z"
)

_FIELDS = ("kind", "source", "partition", "positions", "first", "last", "time", "offset", "contained")


def op_evidence(records: DataFrame, half_topic_id: str, window: Mapping[int, Span]) -> DataFrame:
    """Entries that name halves of the window, or none.

    A record with one malformed entry counts for nothing, nor does one whose source does not write to its topic
    (R65), nor an entry of another half topic or partition.
    """
    texts = records.select(
        f.col("partition").alias("_at"),
        "offset",
        "timestamp",
        f.col("topic").endswith(_VERDICTS).alias("_verdict"),
        f.regexp_extract(header(OP_HEADER), _SOURCE, 1).alias("source"),
        f.split(f.try_validate_utf8(f.col("value").cast("string")), "\n").alias("_lines"),
    )
    # What is exploded is split already, and nothing is for a record that does not count: a filter on it would be pushed
    # down to the record, and everything that it looks at be computed once more.
    placed = f.col("source").isin(*RANKED) == f.col("_verdict")
    valid = (f.col("source") != "") & placed & f.forall("_lines", lambda line: line.rlike(_ENTRY))
    split = f.when(valid, f.transform("_lines", lambda line: f.split(line, " ")))
    entries = texts.select("_at", "offset", "timestamp", "source", f.explode_outer(split).alias("_parts")).select(
        "_at",
        "source",
        "offset",
        f.col("timestamp").alias("time"),
        f.col("_parts")[0].alias("kind"),
        f.col("_parts")[1].alias("transaction_id"),
        f.col("_parts")[2].alias("_topic_id"),
        f.col("_parts")[3].cast("int").alias("partition"),
        f.col("_parts")[4].alias("positions"),
        f.col("_parts")[5].cast("bigint").alias("first"),
        f.col("_parts")[6].cast("bigint").alias("last"),
    )
    first, last = f.col("first"), f.col("last")
    ours = (f.col("_topic_id") == half_topic_id) & (f.col("_at") == f.col("partition"))
    contained = inside(window, f.col("partition"), first) & inside(window, f.col("partition"), last)
    return (
        entries.where(ours & ((first < 0) | overlapping(window, f.col("partition"), first, last)))
        .select("*", f.coalesce(contained, f.lit(False)).alias("contained"))
        .select("transaction_id", f.struct(*_FIELDS).alias("op"))
    )


_MANIFEST = (
    "transaction string, topic_id string, reason string, decision string, partition int, offsets array<array<bigint>>"
)


def discard_evidence(records: DataFrame, half_topic_id: str) -> DataFrame:
    """Manifests of what is in the discard topic: the newest record of a key counts, and a tombstone removes it."""
    key = f.try_validate_utf8(f.col("key").cast("string"))
    newest = (
        records.select("partition", key.alias("key"), "offset", f.col("value").cast("string").alias("value"))
        .where(f.col("key").endswith(MANIFEST_SUFFIX))
        .groupBy("partition", "key")
        .agg(f.max(f.struct("offset", "value")).alias("newest"))
    )
    manifests = newest.select(f.from_json("newest.value", _MANIFEST).alias("one")).select("one.*")
    malformed = f.col("reason") == DiscardReason.MALFORMED
    place = malformed_id(f.col("partition"), f.get(f.get("offsets", f.lit(0)), f.lit(1)))
    return manifests.where(f.col("topic_id") == half_topic_id).select(
        f.when(malformed, place).otherwise(f.col("transaction")).alias("transaction_id"),
        f.struct("reason", "decision").alias("manifest"),
    )
