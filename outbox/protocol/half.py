"""Half messages: the control headers that travel with the user's own key, value and headers."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.identifiers import UUID_PATTERN, check_uuid, message_id
from outbox.protocol.positions import MAX_POSITION

Header = tuple[str, bytes | None]
Headers = Sequence[Header]
OutgoingHeaders = list[tuple[str, str | bytes | None]]
"""As confluent-kafka types the headers that it is given."""

ANY_PARTITION = -1
"""The real queue id that says: by key."""


class Truth(enum.StrEnum):
    """Who knows whether a transaction committed."""

    ROW = "row"
    LISTENER = "listener"


@dataclass(frozen=True, slots=True)
class HalfOptions:
    """What a half says only where it is needed.

    Args:
        timestamp: The user's own timestamp, ms since 1970.
        immunity: Check immunity time, ms after the half's append; None: the channel's `transaction_timeout`.
        ordering: `(key,)` if the transaction's ordering key differs from this message's key, with `(None,)` for a
            transaction without order; None if the message's own key is the ordering key.
        incarnation: Incarnation of the database that holds the callback row (R10).
    """

    timestamp: int | None = None
    immunity: int | None = None
    ordering: tuple[bytes | None] | None = None
    incarnation: str | None = None

    def encode(self) -> bytes:
        """The header's text; empty when nothing is said."""
        parts = []
        if self.timestamp is not None:
            parts.append(f"timestamp={self.timestamp}")
        if self.immunity is not None:
            parts.append(f"immunity={self.immunity}")
        if self.ordering is not None:
            key = self.ordering[0]
            parts.append("unordered" if key is None else f"ordering={quote_from_bytes(key, safe='')}")
        if self.incarnation is not None:
            parts.append(f"incarnation={self.incarnation}")
        return ";".join(parts).encode()


NO_OPTIONS = HalfOptions()


@dataclass(frozen=True, slots=True)
class HalfControl:
    """The control headers of one half message.

    Args:
        topic: Real topic.
        partition: Real queue id, or -1 for "by key".
        transaction_id: UUIDv7 of the transaction.
        position: Place of the message in its transaction, from 0.
        group: Producer group.
        truth: Who answers check requests.
        options: The rest, where needed.
    """

    topic: str
    partition: int
    transaction_id: str
    position: int
    group: str
    truth: Truth
    options: HalfOptions = NO_OPTIONS

    def encode(self) -> list[tuple[str, bytes]]:
        """The control headers, to be put before the user's own."""
        headers = [
            (names.TARGET_HEADER, f"{self.topic}:{self.partition}".encode()),
            (
                names.TRANSACTION_HEADER,
                f"{names.FORMAT_VERSION};{message_id(self.transaction_id, self.position)}".encode(),
            ),
            (names.GROUP_HEADER, f"{self.group};{self.truth}".encode()),
        ]
        options = self.options.encode()
        if options:
            headers.append((names.OPTIONS_HEADER, options))
        return headers

    def ordering_key(self, key: bytes | None) -> bytes | None:
        """The transaction's ordering key, given this message's own key; None: never held."""
        return key if self.options.ordering is None else self.options.ordering[0]


_CONTROL = frozenset({names.TARGET_HEADER, names.TRANSACTION_HEADER, names.GROUP_HEADER, names.OPTIONS_HEADER})
_TRANSACTION = re.compile(rb"(\d{1,6});(" + UUID_PATTERN.encode() + rb")/(\d{1,4})")
_NUMBER = re.compile(r"\d{1,15}")


def parse_half(headers: Headers) -> HalfControl:
    """Read the control headers of a half.

    Raises:
        NewerFormatError: The half is of a newer format: stop the partition, upgrade the relay.
        ProtocolError: A control header is missing, doubled or malformed.
    """
    control: dict[str, bytes] = {}
    for name, value in headers:
        if name in _CONTROL:
            if name in control or value is None:
                raise ProtocolError(f"header {name} is given twice or without a value")
            control[name] = value
    try:
        transaction_id, position = _parse_transaction(control[names.TRANSACTION_HEADER])
        topic, partition = _parse_target(control[names.TARGET_HEADER])
        group, truth = _parse_group(control[names.GROUP_HEADER])
    except KeyError as missing:
        raise ProtocolError(f"header {missing.args[0]} is missing") from None
    options = control.get(names.OPTIONS_HEADER)
    return HalfControl(
        topic, partition, transaction_id, position, group, truth, parse_options(options) if options else NO_OPTIONS
    )


def user_headers(headers: Headers) -> list[Header]:
    """The user's own headers of a half: everything without the reserved prefix, order and repeats kept."""
    return [header for header in headers if not header[0].startswith(names.HEADER_PREFIX)]


def real_headers(control: HalfControl, headers: Headers, origin_partition: int, origin_offset: int) -> OutgoingHeaders:
    """The headers of the record on the real topic: the user's own, then id, producer group and origin (R30)."""
    return [
        *user_headers(headers),
        (names.MESSAGE_ID_HEADER, message_id(control.transaction_id, control.position).encode()),
        (names.PRODUCER_GROUP_HEADER, control.group.encode()),
        (names.ORIGIN_HEADER, f"{origin_partition}/{origin_offset}".encode()),
    ]


def reserved_header(header_names: Iterable[str]) -> str | None:
    """The first header name with the reserved prefix, or None."""
    return next((name for name in header_names if name.startswith(names.HEADER_PREFIX)), None)


def _parse_transaction(value: bytes) -> tuple[str, int]:
    match = _TRANSACTION.fullmatch(value)
    if match is None or int(match[3]) > MAX_POSITION:
        _refuse_newer(value, names.TRANSACTION_HEADER)
        raise ProtocolError(f"header {names.TRANSACTION_HEADER} is malformed: {value!r}")
    if int(match[1]) != names.FORMAT_VERSION:
        _refuse_newer(value, names.TRANSACTION_HEADER)
        raise ProtocolError(f"header {names.TRANSACTION_HEADER} names format {int(match[1])}, which never existed")
    return match[2].decode(), int(match[3])


def _refuse_newer(value: bytes, header: str) -> None:
    version = value.partition(b";")[0]
    if version.isdigit() and int(version) > names.FORMAT_VERSION:
        raise NewerFormatError(
            f"header {header} is of format {int(version)}, this process knows {names.FORMAT_VERSION}: upgrade it"
        )


@lru_cache(maxsize=4096)
def _parse_target(value: bytes) -> tuple[str, int]:
    topic, colon, partition = value.decode(errors="replace").rpartition(":")
    if not colon or not names.is_topic_name(topic) or not re.fullmatch(r"-1|\d{1,9}", partition):
        raise ProtocolError(f"header {names.TARGET_HEADER} is malformed: {value!r}")
    return topic, int(partition)


@lru_cache(maxsize=4096)
def _parse_group(value: bytes) -> tuple[str, Truth]:
    group, _, truth = value.decode(errors="replace").partition(";")
    if truth not in set(Truth):
        raise ProtocolError(f"header {names.GROUP_HEADER} is malformed: {value!r}")
    return names.check_group(group), Truth(truth)


@lru_cache(maxsize=4096)
def parse_options(value: bytes) -> HalfOptions:
    """Read the options header.

    Raises:
        ProtocolError: An option is unknown, doubled or malformed. Options are not skipped: a relay that does not
            know one must not guess what it would have meant.
    """
    found: dict[str, str] = {}
    for part in value.decode(errors="replace").split(";"):
        name, _, text = part.partition("=")
        if name in found:
            raise ProtocolError(f"option {name!r} is given twice")
        found[name] = text
    options = HalfOptions(
        timestamp=_number(found.pop("timestamp", None), "timestamp"),
        immunity=_number(found.pop("immunity", None), "immunity"),
        ordering=_ordering(found),
        incarnation=check_uuid(found.pop("incarnation")) if "incarnation" in found else None,
    )
    if found:
        raise ProtocolError(f"header {names.OPTIONS_HEADER} has an unknown option {sorted(found)[0]!r}")
    return options


def _ordering(found: dict[str, str]) -> tuple[bytes | None] | None:
    if "unordered" in found and "ordering" in found:
        raise ProtocolError("options 'ordering' and 'unordered' exclude each other")
    if "unordered" in found:
        found.pop("unordered")
        return (None,)
    return (unquote_to_bytes(found.pop("ordering")),) if "ordering" in found else None


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ProtocolError(f"option {name!r} is not a number of ms: {text!r}")
    return int(text)
