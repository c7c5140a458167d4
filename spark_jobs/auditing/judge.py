"""The judgement: evidence in, a verdict for each message of the window out. Pure.

One shuffle by transaction; what follows keeps its partitioning and its order. A second shuffle looks at the order of
what was delivered.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from outbox.protocol.half import Truth
from outbox.protocol.names import Channel
from outbox.protocol.op import OpKind, OpSource
from spark_jobs.auditing.cascade import verdict, why_unknown
from spark_jobs.auditing.service_databases import (
    Database,
    database_of,
    database_of_source,
    evidence_may_be_purged,
    incarnation_of,
    may_be_purged,
    purged_below,
)
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.records.database_rows import COMMITTED, lists
from spark_jobs.records.evidence import HALF, LISTED, ORPHAN, REAL, TABLE, message

COLUMNS = (
    "transaction_id string, position bigint, verdict string, detail string, service string, topic string, "
    "database string, half_partition int, half_offset bigint, half_time timestamp, op_time timestamp, "
    "real_topic string, real_partition int, real_offset bigint, real_time timestamp, copies bigint, "
    "half_to_op_ms bigint, op_to_visible_ms bigint, half_to_visible_ms bigint"
)
"""A judged message: verdict, why, where everything of it is, and how long it took; latencies of what was delivered."""

_NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the judgement must know besides the evidence.

    Args:
        grace: ms that a message has to be decided.
        incomplete: Topics that could not be read as they should, real ones and those of the channel.
        shortened: Real topics that begin inside the window.
    """

    grace: int
    databases: Sequence[Database] = ()
    services: Collection[str] = ()
    incomplete: Collection[str] = ()
    channel: Channel = field(default_factory=Channel)
    shortened: Collection[str] = ()

    @property
    def ops_complete(self) -> bool:
        """Whether all op markers were read."""
        return not {self.channel.op_topic, self.channel.verdict_topic} & {*self.incomplete}

    def not_searched(self, half: Column) -> Column:
        """Whether a message may be on its real topic, or have been discarded or dropped, and not been seen."""
        topics = (*self.incomplete, *self.shortened)
        unread = half["topic"].isin(*topics) if topics else f.lit(False)
        if self.ops_complete and self.channel.discard_topic not in self.incomplete:
            return unread
        return unread | (half["truth"] != TABLE)


def judge(evidence: DataFrame, circumstances: Circumstances) -> DataFrame:
    """Return a verdict for each message.

    Returns:
        A frame with `COLUMNS`.
    """
    known = _with_truth(_messages(_with_facts(evidence)), circumstances)
    complete = circumstances.ops_complete
    asked = known.select("*", why_unknown(ops_complete=complete).alias("unknown"))
    judged = asked.select("*", verdict(ops_complete=complete).alias("_judged")).select("*", "_judged.*")
    ours = judged.where(f.col("verdict").isNotNull())
    placed = _placed(ours)
    return _result(reordered(placed))


def _with_facts(evidence: DataFrame) -> DataFrame:
    """Each row with what is known of its whole transaction.

    A window and no `groupBy`: the rows of a transaction come from five sources, so that aggregating them before they
    are shuffled gains nothing, and costs a buffer of objects for each row; a third of an audit's time.
    """
    op, side = f.col("op"), f.col("message.side")
    bystander = op["source"] != OpSource.OPERATOR
    commits = bystander & (op["kind"] == OpKind.COMMIT) & (op["positions"] != "-")
    decides = op["kind"].isin(OpKind.COMMIT, OpKind.ROLLBACK)
    listing = _listing()
    facts = {
        "row": f.max("callback"),
        "manifest": f.max("manifest"),
        "commits": f.count_if(commits),
        "rollbacks": f.count_if(bystander & (op["kind"] == OpKind.ROLLBACK)),
        "dropped": f.count_if(~bystander & (op["kind"] == OpKind.ROLLBACK)),
        "lowest_listing": f.min(f.when(commits, listing)),
        "highest_listing": f.max(f.when(commits, listing)),
        "listing": last_listing(),
        "decided": f.min(f.coalesce(f.when(decides, op["time"]), f.col("message.decided"))),
        "orphan": f.min(f.when(op["contained"], f.struct(op["partition"], op["offset"], op["time"]))),
        "truth": f.max("message.truth"),
        "first_half": f.min(f.when(side == HALF, f.col("message.offset"))),
        "visible": f.count_if(side == REAL),
        "sides": f.count(side),
    }
    # In the order of positions, which the next step services by: it needs no sort of its own.
    rows = Window.partitionBy("transaction_id").orderBy("position")
    whole = rows.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    placed = evidence.select("*", f.col("message.position").alias("position"))
    return placed.select("*", f.struct(*(fact.over(whole).alias(name) for name, fact in facts.items())).alias("facts"))


def last_listing() -> Column:
    """Return what the last op marker of a transaction lists that commits; an aggregate."""
    return f.max_by(_listing(), f.when(f.col("op.kind") == OpKind.COMMIT, f.col("op.time")))


def _listing() -> Column:
    return f.struct(*(f.col(f"op.{name}") for name in ("partition", "positions", "first", "last")))


def _messages(rows: DataFrame) -> DataFrame:
    """One row for each message: its half (the one that counts, else the first), its records, the facts.

    An op marker that is all there is of its transaction counts as a message.
    """
    orphan = f.col("facts.orphan")
    alone = message(side=f.lit(ORPHAN), partition=orphan["partition"], offset=orphan["offset"], time=orphan["time"])
    nobody = (f.col("facts.sides") == 0) & orphan.isNotNull()
    sides = rows.where(f.col("message").isNotNull() | nobody).select(
        "transaction_id", "position", "facts", f.coalesce("message", alone).alias("one")
    )
    one = f.col("one")
    marked = sides.select("*", f.coalesce((one["side"] == HALF) & counts(), f.lit(False)).alias("counts"))
    half, real = f.when(one["side"] == HALF, one), f.when(one["side"] == REAL, one)
    place = f.struct(one["topic"], one["partition"], one["offset"])
    return marked.groupBy("transaction_id", "position").agg(
        f.first("facts").alias("facts"),
        f.min_by(half, f.when(half.isNotNull(), f.struct(~f.col("counts"), one["offset"]))).alias("half"),
        f.bool_or("counts").alias("counted"),
        f.count(real).alias("copies"),
        f.min_by(real, f.when(real.isNotNull(), place)).alias("real"),
        f.max(f.when(real.isNotNull(), place)).alias("last_copy"),
        f.bool_or(one["side"] == LISTED).alias("listed"),
        f.first(f.when(one["side"].isin(LISTED, ORPHAN), one), ignorenulls=True).alias("other"),
    )


def counts() -> Column:
    """Whether the half `one` counts: its transaction is committed, and the decision lists it, by position and offsets.

    Of the `facts` of its transaction it takes the row, the last listing and the truth.
    """
    facts, half = f.col("facts"), f.col("one")
    row, listing = facts["row"], facts["listing"]
    by_row = row["here"] & (row["state"] == COMMITTED) & _is_listed(half, row)
    by_listener = f.when(facts["truth"] == Truth.LISTENER, _is_listed(half, listing)).otherwise(by_row)
    return f.when(half["truth"] == TABLE, f.lit(True)).otherwise(by_listener)


def _is_listed(half: Column, decision: Column) -> Column:
    return (
        (half["partition"] == decision["partition"])
        & half["offset"].between(decision["first"], decision["last"])
        & lists(decision["positions"], half["position"])
    )


def _with_truth(messages: DataFrame, circumstances: Circumstances) -> DataFrame:
    """Add what depends on the databases, on the grace, and on what could not be read."""
    half, real, facts = f.col("half"), f.col("real"), f.col("facts")
    service = f.coalesce(half["service"], real["service"])
    databases, source = circumstances.databases, f.coalesce(half["source"], real["source"])
    of_source = database_of_source(databases, source)
    named = messages.select(
        "*",
        of_source.alias("source_database"),
        f.coalesce(of_source, database_of(databases, service)).alias("database"),
        service.alias("service"),
    )
    purged = purged_below(databases, f.col("database"), half["partition"])
    late = facts["decided"] > half["time"] + f.expr(f"INTERVAL {circumstances.grace} MILLISECOND")
    return named.select(
        "*",
        (incarnation_of(databases, f.col("database")) != half["incarnation"]).alias("foreign_database"),
        (half["offset"] < purged).alias("purged"),
        f.when(source.isNull(), may_be_purged(databases, f.col("database"), f.col("transaction_id")))
        .otherwise(evidence_may_be_purged(databases, source, f.col("transaction_id")))
        .alias("old"),
        f.col("service").isin(*circumstances.services).alias("service_is_present"),
        f.coalesce(late, f.lit(False)).alias("decided_late"),
        circumstances.not_searched(half).alias("not_searched"),
    )


def _placed(judged: DataFrame) -> DataFrame:
    """Return the result without latencies, with the columns that latencies and order depend on."""
    half, real, facts = f.col("half"), f.col("real"), f.col("facts")
    of_table = half["truth"] == TABLE
    return judged.select(
        "transaction_id",
        "position",
        "verdict",
        "detail",
        f.coalesce("service", "other.service", "facts.row.service").alias("service"),
        f.coalesce(half["topic"], real["topic"]).alias("topic"),
        "database",
        f.coalesce(half["partition"], f.col("other.partition"), real["origin_partition"]).alias("half_partition"),
        f.coalesce(half["offset"], f.when(f.col("listed"), f.col("other.offset")), real["origin_offset"]).alias(
            "half_offset"
        ),
        half["time"].alias("half_time"),
        facts["decided"].alias("op_time"),
        real["topic"].alias("real_topic"),
        real["partition"].alias("real_partition"),
        real["offset"].alias("real_offset"),
        real["time"].alias("real_time"),
        "copies",
        # The broker's time on both sides; a real topic with the producer's time does not show when.
        f.when(real["time_type"] == 1, real["time"]).alias("_visible"),
        # The rows of table mode have one order, whatever their transactions; the key is that of the record.
        f.coalesce(half["ordering"], f.when(of_table, real["ordering"])).alias("_ordering"),
        half["source"].alias("_source"),
        real["late"].alias("_late"),
        f.when(of_table, half["offset"]).otherwise(f.least(facts["row"]["first"], facts["first_half"])).alias("_first"),
    )


def _result(placed: DataFrame) -> DataFrame:
    half, decided, visible = f.col("half_time"), f.col("op_time"), f.col("_visible")
    delivered = f.col("verdict").isin(Verdict.DELIVERED_ONCE, Verdict.LATE)
    by_op = f.col("_source").isNull()  # rows of table mode are decided by no op marker
    latencies = {
        "half_to_op_ms": f.when(by_op, _milliseconds(half, decided)),
        "op_to_visible_ms": f.when(by_op, _milliseconds(decided, visible)),
        "half_to_visible_ms": _milliseconds(half, visible),
    }
    timed = {name: f.when(delivered, latency) for name, latency in latencies.items()}
    return placed.withColumns(timed).select(*_NAMES)


def _milliseconds(start: Column, end: Column) -> Column:
    return f.unix_millis(end) - f.unix_millis(start)


def reordered(judged: DataFrame) -> DataFrame:
    """Judge again what is right but for its place behind a later message.

    On one partition of a real topic the messages of one service and ordering key have the order of their
    transactions' first halves, and of their positions. What comes late is marked, and is not compared. In table mode
    they have the order of their rows.

    Args:
        judged: Messages with a verdict and their places; `_first`, the offset of their transaction's first half,
            `_ordering`, their ordering key, `_source`, their table source, and `_late`.
    """
    delivered = f.col("verdict").isin(Verdict.DELIVERED_ONCE, Verdict.LATE) & ~f.col("_late")
    compared = f.coalesce(delivered & f.col("_ordering").isNotNull(), f.lit(False))
    sequence = f.when(compared, f.struct("_first", "position"))
    before = Window.partitionBy("_lane").orderBy("real_offset").rowsBetween(Window.unboundedPreceding, -1)
    placed = judged.select("*", _lane(compared).alias("_lane"), sequence.alias("_sequence"))
    overtaken = placed.select("*", (f.col("_sequence") < f.max("_sequence").over(before)).alias("_overtaken"))
    return overtaken.withColumns(
        {
            "verdict": f.when(f.col("_overtaken"), Verdict.REORDERED).otherwise(f.col("verdict")),
            "detail": f.when(f.col("_overtaken"), "behind a later one of its ordering key").otherwise(f.col("detail")),
        }
    )


def _lane(compared: Column) -> Column:
    """Return what is compared with each other; the rest has a lane for each transaction, so that no lane is endless."""
    service = ("service", "_ordering", "_source", "half_partition", "real_topic", "real_partition")
    shared = [f.when(compared, f.col(column)).alias(column) for column in service]
    return f.struct(*shared, f.when(~compared, f.col("transaction_id")).alias("_alone"))
