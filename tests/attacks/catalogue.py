"""All attacks, and the table of them in the documents."""

from collections.abc import Iterator, Mapping, Sequence

from tests.attacks.attack import Attack
from tests.attacks.on_clients import ON_CLIENTS
from tests.attacks.on_database import ON_DATABASE
from tests.attacks.on_topics import ON_TOPICS
from tests.attacks.through_relay import THROUGH_RELAY
from tests.attacks.through_rows import THROUGH_ROWS

ATTACKS: Mapping[str, Sequence[Attack]] = {
    "On topics": ON_TOPICS,
    "On consumer groups, transactional ids, users and rights": ON_CLIENTS,
    "Through its own relay, by half messages and op markers": THROUGH_RELAY,
    "Through its own relay, by rows of its message table": THROUGH_ROWS,
    "In the database": ON_DATABASE,
}
"""By what is attacked."""


def lines(attacks: Sequence[Attack]) -> Iterator[tuple[str, str, str]]:
    """Yield the lines of the documents' table: each attack that has an effect, who stops it, and the effect."""
    for one in attacks:
        if one.effect:
            yield one.what, str(one.by), one.effect
