"""What the pages of the console show: the views of the commands, in their words, and ways on from there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from outbox._service.output import Entry, utc
from outbox.errors import OutboxError, UsageError
from outbox.operator import views, words
from outbox.operator.checks.source_checks import examine_state
from outbox.operator.console.actions import Verb
from outbox.operator.deciding.discarded_places import Discards
from outbox.operator.reading.database_view import DatabaseView
from outbox.operator.reading.source_report import report_tables
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.channel_state import ChannelState
from outbox.operator.state.discarded import sums_of
from outbox.operator.state.story import Status
from outbox.operator.views import parse_id, parse_since


class Section(NamedTuple):
    """A part of a page; `items` asks servers, and blocks."""

    title: str
    items: Callable[[], Iterable[Entry]]


@dataclass
class Page:
    """A page, whose sections are not asked for yet, with the command that shows the same on a terminal."""

    title: str
    command: str = ""
    sections: Sequence[Section] = ()
    search: Mapping[str, str] = field(default_factory=lambda: {"since": "24h"})


_VERBS = {  # what may be decided on a transaction of some state
    Status.DISCARDED: (Verb.DELIVER, Verb.DROP),
    **dict.fromkeys((Status.UNDECIDED, Status.PARKED, Status.CONTRADICTION), (Verb.COMMIT, Verb.ROLLBACK)),
}


@dataclass
class Pages:
    """The pages of one channel, with a viewer's settings."""

    settings: OperatorSettings
    can_act: bool

    def _command(self, *words_: str) -> str:
        return shlex.join(["outbox", *words_, "--channel", self.settings.channel])

    def overview(self, _: Mapping[str, str]) -> Page:
        sections = [
            Section("Table sources", self._sources),
            Section("Half mode", self._halves),
            Section("Dead letters", self._dead_letters),
            Section("Databases of half mode", self._databases),
        ]
        return Page("What waits", self._command("pending"), sections)

    def _sources(self) -> Iterable[Entry]:
        tables = report_tables(self.settings)
        entries = words.sources(ChannelState(self.settings.channel, 0, tables=tables))
        for one, entry in zip(tables, entries, strict=True):
            steps = [f"next step: {found.fix}" for found in examine_state(one) if not found.fine]
            yield entry._replace(details=[*entry.details, *dict.fromkeys(steps)])
        if not tables:
            yield Entry("none is configured (setting tables)")

    def _halves(self) -> Iterable[Entry]:
        state = views.overview(self.settings, None, 0, words.MOST_LISTED, tables=False)
        if state.silence is not None:
            raise state.silence
        if state.tables_only:
            yield Entry(f"channel {state.channel} has none")
        yield from words.halves(state)
        for service, count in state.members.items():
            if count != 0:
                yield Entry(f"{service}: {'its group cannot be seen' if count is None else f'{count} in its group'}")

    def _dead_letters(self) -> Iterable[Entry]:
        places = Discards(self.settings)
        sums = sums_of(places.read())
        for (one, _), entry in zip(sums, words.dead_letter_sums(sums), strict=True):
            target = {"service": one.service, "reason": one.reason}
            yield entry._replace(links=self._previews(_VERBS[Status.DISCARDED], **target))
        if not sums:
            yield Entry("none was found")
        yield from (Entry(f"not read: {place}") for place in places.unread())

    def _databases(self) -> Iterable[Entry]:
        for name, database in self.settings.all_databases().items():
            try:
                DatabaseView(name, database, self.settings.channel).look([])
                yield Entry(f"database {name} answers")
            except OutboxError as error:
                yield Entry(str(error))

    def _previews(self, verbs: Iterable[Verb], **target: str) -> list[tuple[str, str]]:
        some = verbs if self.can_act else ()
        return [(f"preview: {verb}", f"/preview?{urlencode({'verb': verb, **target})}") for verb in some]

    def find(self, given: Mapping[str, str]) -> Page:
        search = {name: given.get(name, "").strip() for name in ("key", "topic", "service", "since")}
        search["since"] = search["since"] or "24h"
        if not search["key"]:
            raise UsageError("A search needs a key.")
        start, topics = parse_since(search["since"]), [search["topic"]] if search["topic"] else []

        def items() -> Iterable[Entry]:
            found = views.find(self.settings, search["key"].encode(), topics, search["service"] or None, start)
            yield from words.messages(search["key"], found.found)
            yield from map(Entry, (*found.lines(utc(start)), words.NO_KEY))

        options = [word for name, value in search.items() if value for word in (f"--{name}", value)]
        return Page(f"Key {search['key']}", self._command("find", *options), [Section("Messages", items)], search)

    def story(self, given: Mapping[str, str]) -> Page:
        id_, topics = given.get("id", ""), [given["topic"]] if given.get("topic") else []
        parsed, options = parse_id(id_), [word for topic in topics for word in ("--topic", topic)]

        def items() -> Iterable[Entry]:
            found = views.story(self.settings, parsed, None, topics)
            state, sentence = found.conclusion
            is_decided = found.is_of_rows and state is not Status.DISCARDED
            links = self._previews(() if is_decided else _VERBS.get(state, ()), id=parsed[0])
            yield Entry(f"{state}: {sentence}", links=links)
            yield from words.story(found)

        return Page(f"Transaction {parsed[0]}", self._command("trace", id_, *options), [Section("Story", items)])
