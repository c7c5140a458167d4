"""From what is known of a message to its verdict: the first case that fits. Pure.

The columns are those that `spark_jobs.auditing.judge` makes: `half` (the one that counts, else the first), `counted`,
`real` (the first of its records), `copies`, `last_copy`, `other` (its place in a row or an op), `facts` (of its
transaction), `database`, `unknown` (of `why_unknown`), and what was found out about them. A comparison with what is not
there is null, which is not true.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox.protocol.half import ANY_PARTITION, Truth
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.records.database_rows import COMMITTED, ROLLED_BACK, is_readable
from spark_jobs.records.evidence import ORPHAN, TABLE


class Rule(NamedTuple):
    """A verdict, when it is given, and why.

    Args:
        verdict: The verdict; None: it is no message of this audit.
        detail: One sentence for people; empty where the verdict is enough.
    """

    when: Column
    verdict: Verdict | None
    detail: Column | str = ""


def verdict(*, ops_complete: bool) -> Column:
    """Verdict and detail as a struct; its verdict is null for what is no message of this audit."""
    chain = None
    for case in _cases(ops_complete=ops_complete):
        name = f.lit(None).cast("string") if case.verdict is None else f.lit(str(case.verdict))
        detail = f.lit(case.detail) if isinstance(case.detail, str) else case.detail
        value = f.struct(name.alias("verdict"), detail.alias("detail"))
        chain = f.when(case.when, value) if chain is None else chain.when(case.when, value)
    if chain is None:
        raise ValueError("there are no cases")
    return chain


def why_unknown(*, ops_complete: bool) -> Column:
    """Why it cannot be found out whether a message is committed; null if it can. `verdict` needs it as `unknown`."""
    asked, row = f.col("half.truth") == Truth.ROW, f.col("facts.row")
    reasons = {
        "no database is configured for its service": asked & f.col("database").isNull(),
        "it names another incarnation of the database": asked & f.col("foreign_database"),
        "its row names another half topic": asked & ~row["here"] & ~_of_outcome(),
        "its row cannot be read": asked & ~is_readable(row["positions"]),
        "its row may have been purged": asked & row.isNull() & f.col("purged"),
    }
    if not ops_complete:
        undecided = (f.col("copies") > 0) & ~f.col("counted")
        reasons["op markers of that time could not be read"] = undecided & (f.col("facts.truth") == Truth.LISTENER)
    return f.coalesce(*(f.when(holds, reason) for reason, holds in reasons.items()))


def _cases(*, ops_complete: bool) -> Iterator[Rule]:
    yield from _without_a_half()
    yield from _malformed()
    yield from _certainly_wrong()
    yield Rule(f.col("unknown").isNotNull(), Verdict.UNPROVABLE, f.col("unknown"))
    yield from _visible()
    yield from _committed_but_not_visible()
    yield from _not_committed(ops_complete=ops_complete)


def _without_a_half() -> Iterator[Rule]:
    none, other, row = f.col("half").isNull(), f.col("other"), f.col("facts.row")
    visible = f.when(f.col("copies") > 0, "visible, and not in the half topic").otherwise("nowhere")
    yield Rule(none & f.col("listed"), Verdict.ROW_WITHOUT_HALF, visible)
    yield Rule(none & (other["side"] == ORPHAN), Verdict.OP_WITHOUT_HALF, "there is no row that lists it, either")
    yield Rule(none & ~row["here"] & ~_of_outcome(), None)  # of another channel, by its own row
    yield from _without_a_row_of_its_table(none & f.col("real.source").isNotNull())
    yield from _without_a_half_or_a_row(none & row.isNull())
    yield Rule(none, Verdict.PHANTOM, "no half of it is at the place that its header names")


def _without_a_half_or_a_row(neither: Column) -> Iterator[Rule]:
    """Yield the cases of records that name no channel: those of another channel on the same topic look the same."""
    service, present = f.col("service"), f.col("service_is_present")
    unnamed = service.isNotNull() & f.col("database").isNull()
    yield Rule(neither & unnamed & ~present, Verdict.FOREIGN)
    yield Rule(neither & unnamed, Verdict.UNPROVABLE, "no half of it, and no database for its service")
    yield Rule(neither & f.col("old"), Verdict.UNPROVABLE, "no half of it; it may be another channel's, its row purged")
    yield Rule(neither & ~present, Verdict.UNPROVABLE, "no half of it, nor of its service: it may be another channel's")


def _without_a_row_of_its_table(none: Column) -> Iterator[Rule]:
    """Yield the cases of records of table mode: each has a row that waits, or evidence, or neither."""
    unnamed = f.col("database").isNull() & ~f.col("service_is_present")
    yield Rule(none & unnamed, Verdict.FOREIGN)
    yield Rule(none & f.col("source_database").isNull(), Verdict.UNPROVABLE, "no database has its table source")
    yield Rule(none & f.col("old"), Verdict.UNPROVABLE, "no row of it, and its evidence may have been purged")
    yield Rule(none, Verdict.PHANTOM, "its table source has neither a row nor evidence of it")


def _malformed() -> Iterator[Rule]:
    malformed, manifest = f.col("half.truth").isNull(), f.col("facts.manifest")
    yield Rule(malformed & manifest.isNotNull(), Verdict.DISCARDED, manifest["reason"])
    yield Rule(malformed & _unsettled(), Verdict.DANGLING, "its control headers cannot be read; not settled")
    yield Rule(malformed, Verdict.DISCARDED, "its control headers cannot be read; it is no longer in the discard topic")


def _certainly_wrong() -> Iterator[Rule]:
    """Yield what is visible and wrong; but for the first, whether it is committed or that is unknown."""
    visible, half, real, last = f.col("copies") > 0, f.col("half"), f.col("real"), f.col("last_copy")
    unknown = f.coalesce(f.concat(f.lit("; is it committed? "), f.col("unknown")), f.lit(""))
    yield Rule(visible & ~f.col("counted") & f.col("unknown").isNull(), Verdict.PHANTOM, _why_not_committed())
    places = f.concat_ws("/", last["topic"], last["partition"], last["offset"])
    times = f.concat(f.col("copies").cast("string"), f.lit(" times, the last one at "), places, unknown)
    yield Rule(f.col("copies") > 1, Verdict.DUPLICATE, times)
    aimed = f.concat_ws(":", half["topic"], half["target"])
    off = (real["topic"] != half["topic"]) | ((half["target"] != ANY_PARTITION) & (real["partition"] != half["target"]))
    naming = f.when(half["truth"] == TABLE, "its row names ").otherwise("its half names ")
    yield Rule(visible & off, Verdict.WRONG_TARGET, f.concat(naming, aimed, unknown))
    differences = _differences(half, real)
    yield Rule(visible & (differences != ""), Verdict.WRONG_CONTENT, f.concat(differences, unknown))


def _visible() -> Iterator[Rule]:
    visible, facts, reason = f.col("copies") > 0, f.col("facts"), f.col("half.reason")
    yield Rule(visible & reason.isNotNull(), Verdict.DISCARDED, f.concat(reason, f.lit(", and visible all the same")))
    yield Rule(visible & _contradicted(), Verdict.CONTRADICTORY_OPS, _op_counts())
    yield Rule(visible & f.col("real.late"), Verdict.LATE, "by way of the discard topic")
    yield Rule(visible & f.col("decided_late"), Verdict.LATE, "decided after the grace")
    yield Rule(visible & facts.isNotNull(), Verdict.DELIVERED_ONCE)


def _committed_but_not_visible() -> Iterator[Rule]:
    counted, facts, reason = f.col("counted"), f.col("facts"), f.col("half.reason")
    yield Rule(counted & reason.isNotNull(), Verdict.DISCARDED, reason)
    yield Rule(counted & facts["manifest"].isNotNull(), Verdict.DISCARDED, facts["manifest"]["reason"])
    yield Rule(counted & (facts["dropped"] > 0), Verdict.DISCARDED, "an operator dropped it")
    # A relay that delivers at this moment has one partition's records visible before another's: nothing is torn yet.
    yield Rule(counted & _unsettled(), Verdict.DANGLING, "committed; the relay has not delivered it yet")
    yield Rule(counted & f.col("not_searched"), Verdict.UNPROVABLE, "a topic where it may be was not read as a whole")
    yield Rule(counted & (facts["visible"] > 0), Verdict.TORN, "others of its transaction are visible")
    yield Rule(counted, Verdict.LOST)


def _not_committed(*, ops_complete: bool) -> Iterator[Rule]:
    facts = f.col("facts")
    row = facts["row"]
    decided = facts["truth"] == Truth.LISTENER
    # The relay looks for halves at the place of the row, and settles any other as a stray one: the message is nowhere.
    misplaced = f.col("listed") & (f.col("half.truth") == Truth.ROW)
    yield Rule(misplaced, Verdict.ROW_WITHOUT_HALF, "a half of it is at another place than the row names")
    yield Rule(_contradicted(), Verdict.CONTRADICTORY_OPS, _op_counts())
    yield Rule(row["state"] == ROLLED_BACK, Verdict.ROLLED_BACK)
    yield Rule(row["state"] == COMMITTED, Verdict.ROLLED_BACK, "struck: the committed row does not list it")
    yield Rule(facts["rollbacks"] + facts["dropped"] > 0, Verdict.ROLLED_BACK)
    yield Rule(decided & (facts["commits"] > 0), Verdict.ROLLED_BACK, "the op marker does not list it")
    yield Rule(facts["manifest"].isNotNull(), Verdict.DISCARDED, facts["manifest"]["reason"])
    yield Rule(facts["listing"].isNotNull(), Verdict.ROLLED_BACK, "a copy: the op marker lists nothing")
    if not ops_complete:
        yield Rule(f.lit(True), Verdict.UNPROVABLE, "op markers of that time could not be read")
    yield Rule(
        f.lit(True), Verdict.DANGLING, f.when(_unsettled(), "undecided").otherwise("settled for an unknown reason")
    )


def _unsettled() -> Column:
    return f.col("half.unsettled")


def _of_outcome() -> Column:
    """Whether the row is a rollback row of `outcome()`, which does not know the halves."""
    return (f.col("facts.row.state") == ROLLED_BACK) & (f.col("facts.row.positions") == "-")


def _why_not_committed() -> Column:
    row, listener = f.col("facts.row"), f.col("facts.truth") == Truth.LISTENER
    return (
        f.when(row["state"] == ROLLED_BACK, "its row is a rollback row")
        .when(f.col("listed"), "its row names another place than that of its half")
        .when(row.isNotNull(), "its row does not list it")
        .when(listener, "no op marker commits it")
        .otherwise("there is no row of its transaction")
    )


def _contradicted() -> Column:
    """Whether decisions contradict each other: two lists of what counts are two decisions, two rollbacks are not."""
    facts = f.col("facts")
    row, commits, rollbacks = facts["row"], facts["commits"] > 0, facts["rollbacks"] > 0
    by_row = f.when(row["state"] == COMMITTED, rollbacks).when(row["state"] == ROLLED_BACK, commits)
    alone = (facts["truth"] == Truth.ROW) & commits & row.isNull()
    return f.coalesce(by_row, f.lit(False)) | (commits & rollbacks) | _disagreeing() | alone


def _disagreeing() -> Column:
    """Whether op markers that commit list different messages; false where none commits."""
    return f.coalesce(f.col("facts.lowest_listing") != f.col("facts.highest_listing"), f.lit(False))


def _op_counts() -> Column:
    facts = f.col("facts")
    row = f.coalesce(facts["row"]["state"], f.lit("none"))
    return f.concat(
        facts["commits"].cast("string"),
        f.lit(" op markers decide COMMIT, "),
        facts["rollbacks"].cast("string"),
        f.lit(" ROLLBACK; the row: "),
        row,
    )


def _differences(half: Column, real: Column) -> Column:
    """Return what a record has otherwise than its half, in words."""
    origin = (real["origin_partition"] != half["partition"]) | (real["origin_offset"] != half["offset"])
    parts = {
        "key, value or headers": real["content"] != half["content"],
        "service": ~real["service"].eqNullSafe(half["service"]),
        "origin": origin | real["origin_offset"].isNull() | ~real["source"].eqNullSafe(half["source"]),
        "timestamp": (real["time_type"] == 0) & (real["time"] != half["sent"]),
    }
    return f.concat_ws(", ", *(f.when(differs, name) for name, differs in parts.items()))
