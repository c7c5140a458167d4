"""The page of all drills: people write its prose, `python -m tests.drills` what commands print, and the seconds."""

from collections.abc import Callable
from pathlib import Path

from tests.drills import messages, relays, servers
from tests.drills.scene import Scene

PAGE = Path(__file__).parents[2] / "docs/operations/drills.md"

DRILLS: dict[str, Callable[[Scene], None]] = {
    "Order 4711 never arrived": messages.never_arrived,
    "Nothing is delivered at all": relays.none_runs,
    "Rows wait although relays run": relays.not_named,
    "A name in the settings is wrong": relays.wrong_name,
    "A relay is refused by its database": relays.refused,
    "A relay is frozen": relays.frozen,
    "A topic was never created": messages.never_created,
    "A topic was deleted": messages.deleted,
    "Messages are larger than their topic allows": messages.too_large,
    "Messages that no topic can take": messages.not_deliverable,
    "Kafka is down": servers.kafka_down,
    "Postgres is down": servers.postgres_down,
    "The database takes no writes": servers.read_only,
    "The database was restored from a backup": servers.restored,
    "A transaction does not end": servers.does_not_end,
}
"""By the headings of their sections, which are what an operator sees."""

LONG = {relays.frozen, servers.kafka_down, servers.postgres_down}


def written(symptom: str) -> tuple[str, str]:
    """Return the section of a drill as the page has it, and the transcript in it."""
    _, heading, rest = PAGE.read_text().partition(f"\n## {symptom}\n")
    section = heading + rest.partition("\n## ")[0]
    return section, section.partition("```console\n")[2].partition("```\n")[0]
