"""Halves as evidence: their control headers read as the relay reads them. Pure.

The forms are those of `outbox.protocol.half`; the test vectors of docs/vectors.json hold for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.half import Truth
from outbox.protocol.identifiers import UUID_LENGTH, UUID_PATTERN
from outbox.protocol.names import FORMAT_VERSION, OPTIONS_HEADER, SERVICE_HEADER, TARGET_HEADER, TRANSACTION_HEADER
from spark_jobs.records.evidence import HALF, malformed_id, message
from spark_jobs.records.headers import content_hash, has_header, header, is_single

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
        records: Records of the half topic as Spark's Kafka source gives them.
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
    marked = read.join(f.broadcast(_offsets(read, unsettled)), ["partition", "offset"], "left")
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
