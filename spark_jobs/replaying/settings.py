"""Settings of `replay`, with what derives from them."""

from __future__ import annotations

import re

from outbox._settings.of_jobs import ReplayFields, names_in
from outbox._settings.properties import refuse_properties
from outbox.protocol.identifiers import UUID_PATTERN
from outbox.protocol.names import is_internal_topic, is_topic_name
from spark_jobs.records.audit_verdicts import REPORTED, Verdict
from spark_jobs.replaying.kafka_transaction import OURS
from spark_jobs.replaying.selection import Selection

MOST_IDS = 10_000

_ID = re.compile(rf"{UUID_PATTERN}(/(0|[1-9][0-9]{{0,17}}))?")


class ReplaySettings(ReplayFields):
    """Settings of `replay`."""

    def check(self) -> None:
        super().check()
        refuse_properties(self.kafka, OURS)
        _check_ids(names_in(self.ids))
        _check_verdicts(self.verdicts)
        if self.target and not is_topic_name(self.target):
            raise ValueError("target is no topic name that Kafka allows. Use letters, digits, dot, underscore, hyphen.")
        if not (self.ids or self.where.strip() or self.verdicts):
            raise ValueError("nothing is selected. Give ids, where or verdicts; --where true is everything.")
        if bool(self.verdicts) != bool(self.findings):
            raise ValueError("one of verdicts and findings is missing. Give both: which verdicts, and of which audit.")
        if self.target and is_internal_topic(self.target, self.channel_names()):
            raise ValueError(f"target {self.target} is an internal topic. Choose another topic.")

    @property
    def name(self) -> str:
        return f"outbox-{self.job_id}-{self.replay_id}"

    def selection(self) -> Selection:
        return Selection(names_in(self.ids), self.where, names_in(self.verdicts), self.include_replays)


def _check_ids(given: tuple[str, ...]) -> None:
    if wrong := [id_ for id_ in given if not _ID.fullmatch(id_)]:
        raise ValueError(
            f"{wrong[0][:80]!r} is neither a message id (<transaction id>/<number>) nor a transaction id. "
            "Correct or remove it."
        )
    if len(given) > MOST_IDS:
        raise ValueError(f"{len(given)} ids are too many. Name at most {MOST_IDS}, or select with where.")


def _check_verdicts(verdicts: str) -> None:
    for name in names_in(verdicts):
        if name not in set(Verdict):
            raise ValueError(f"{name!r} is no verdict. Name one of {', '.join(REPORTED)}.")
        if name not in REPORTED:
            raise ValueError(
                f"{name} is no finding, because an audit keeps only what is wrong. Name one of {', '.join(REPORTED)}."
            )
