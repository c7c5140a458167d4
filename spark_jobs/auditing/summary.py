"""The summary of an audit: verdicts, latencies, and what was read. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from outbox._service.exit_codes import Exit
from spark_jobs.auditing.comparison import Comparison
from spark_jobs.auditing.service_databases import Database
from spark_jobs.auditing.window import Inputs, text_of
from spark_jobs.records.audit_verdicts import REPORTED, Proof, Verdict

FORMAT_VERSION = 1

PERCENTILES = (0.5, 0.95, 0.99, 1.0)

LATENCIES = ("half_to_op_ms", "op_to_visible_ms", "half_to_visible_ms")

_ACCURACY = 10_000


@dataclass(frozen=True, slots=True)
class ServiceSummary:
    """The messages of one service to one real topic.

    Args:
        service: The service; None where it is unknown.
        topic: The topic; None likewise.
        verdicts: Messages by verdict.
        latencies: ms at the `PERCENTILES`, of what was delivered; None where a topic keeps the producer's time.
    """

    service: str | None
    topic: str | None
    verdicts: Mapping[str, int]
    latencies: Mapping[str, Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What an audit found.

    Args:
        compared: What was compared by numbers and hashes, by kind.
    """

    inputs: Inputs
    databases: Sequence[Database]
    shares: Sequence[ServiceSummary]
    compared: Mapping[str, Sequence[Comparison]] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Messages by verdict, those verdicts that were given, in the order of `Verdict`."""
        total: Counter[str] = Counter()
        for share in self.shares:
            total.update(share.verdicts)
        return {verdict: total[verdict] for verdict in Verdict if total[verdict]}

    def weighs(self, weight: Proof) -> int:
        return sum(count for verdict, count in self.counts().items() if Verdict[verdict].weight is weight)

    def differences(self) -> list[Comparison]:
        return [one for several in self.compared.values() for one in several if one.differs]

    def exit_code(self) -> Exit:
        """How the command ends: what is certainly wrong outweighs what cannot be known."""
        if self.weighs(Proof.FINDING) or self.differences():
            return Exit.FINDINGS
        if self.weighs(Proof.UNPROVABLE) or self.inputs.incomplete:
            return Exit.UNPROVABLE
        return Exit.OK

    def document(self) -> dict[str, Any]:
        window = self.inputs.window
        return {
            "format": FORMAT_VERSION,
            "outcome": self.exit_code().name,
            "channel": self.inputs.channel,
            "window": {"from": text_of(window.start), "to": text_of(window.end), "grace_ms": window.grace},
            "messages": sum(self.counts().values()),
            "verdicts": self.counts(),
            "incomplete": dict(self.inputs.incomplete),
            "shortened": dict(self.inputs.shortened),
            "percentiles": list(PERCENTILES),
            "shares": [asdict(share) for share in self.shares],
            "compared": {kind: [asdict(one) for one in several] for kind, several in self.compared.items()},
            "databases": [asdict(database) for database in self.databases],
            "spans": asdict(self.inputs),
        }


def summarize(judged: DataFrame, inputs: Inputs, databases: Sequence[Database]) -> Summary:
    """Count verdicts and measure latencies, in one pass."""
    counts = [f.count_if(f.col("verdict") == str(verdict)).alias(verdict) for verdict in Verdict]
    levels = f.array(*map(f.lit, PERCENTILES))
    latencies = [f.percentile_approx(name, levels, _ACCURACY).alias(name) for name in LATENCIES]
    rows = judged.groupBy("service", "topic").agg(*counts, *latencies).collect()
    shares = sorted(map(_share, rows), key=lambda share: (-sum(share.verdicts.values()), str(share)))
    return Summary(inputs, databases, shares)


def _share(row: Row) -> ServiceSummary:
    verdicts = {str(verdict): row[verdict] for verdict in Verdict if row[verdict]}
    latencies = {name: None if row[name] is None else [math.ceil(one) for one in row[name]] for name in LATENCIES}
    return ServiceSummary(row.service, row.topic, verdicts, latencies)


def findings_of(judged: DataFrame) -> DataFrame:
    """Everything that is worth a look, one row for each message."""
    return judged.where(f.col("verdict").isin(*REPORTED))


def samples_of(findings: DataFrame, most: int) -> dict[Verdict, list[Row]]:
    """Return some messages of each verdict, the oldest ones."""
    present = {row.verdict for row in findings.select("verdict").distinct().collect()}
    return {
        verdict: findings.where(f.col("verdict") == str(verdict))
        .orderBy("half_partition", "half_offset", "transaction_id", "position")
        .limit(most)
        .collect()
        for verdict in REPORTED
        if verdict in present
    }
