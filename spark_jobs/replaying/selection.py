"""Which landed records are sent again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.errors import ConfigurationError
from outbox.protocol.names import REPLAY_HEADER
from spark_jobs.columns import header_value
from spark_jobs.runtime.errors import reason


@dataclass(frozen=True, slots=True)
class Selection:
    """What is selected: all that fits everything that is given.

    Args:
        ids: Message ids, and transaction ids, which select all their messages.
        where: A condition in SQL over the columns of the table.
        include_replays: Whether what an earlier replay has sent, and was landed, is sent once more.
    """

    ids: Collection[str] = ()
    where: str = ""
    verdicts: Collection[str] = ()
    include_replays: bool = False


def select(records: DataFrame, selection: Selection, findings: DataFrame | None = None) -> DataFrame:
    """Return the records that are selected."""
    chosen = records if selection.include_replays else records.where(header_value(REPLAY_HEADER).isNull())
    if selection.ids:
        chosen = chosen.where(_named(selection.ids))
    if selection.where:
        chosen = _where(chosen, selection.where)
    if findings is not None:
        # A finding without a position is not one of a message; it fits no record.
        named = f.concat("transaction_id", f.lit("/"), f.col("position").cast("string")).alias("message_id")
        judged = findings.where(f.col("verdict").isin(*selection.verdicts)).select(named)
        chosen = chosen.join(judged.distinct(), "message_id", "left_semi").select(records.columns)
    return chosen


def _named(ids: Collection[str]) -> Column:
    messages = sorted(id_ for id_ in ids if "/" in id_)
    transactions = sorted(id_ for id_ in ids if "/" not in id_)
    return f.col("message_id").isin(messages) | f.col("transaction_id").isin(transactions)


def _where(records: DataFrame, condition: str) -> DataFrame:
    try:
        return records.where(f.expr(condition))
    except (AnalysisException, ParseException) as error:
        raise ConfigurationError(
            f"where is no condition over the columns of the table: {reason(error)}. Correct it."
        ) from error


def absent_ids(chosen: DataFrame, ids: Collection[str]) -> list[str]:
    both = chosen.select(f.explode(f.array("message_id", "transaction_id")).alias("id"))
    found = {row.id for row in both.where(f.col("id").isin(sorted(ids))).distinct().collect()}
    return sorted(set(ids) - found)


def up_to(records: DataFrame, lasts: Mapping[tuple[str, int], int]) -> DataFrame:
    """Return records of some landed partitions, up to the last offset of each; what was landed since is left out."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), last in lasts.items():
        by_topic.setdefault(topic, {})[partition] = last
    known = f.lit(False)
    for topic, parts in by_topic.items():
        limits = f.create_map(*(f.lit(number) for pair in sorted(parts.items()) for number in pair))
        known |= (f.col("topic") == topic) & (f.col("offset") <= f.try_element_at(limits, f.col("partition")))
    return records.where(known)
