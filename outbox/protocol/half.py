"""Half messages: the control headers that travel with the user's own key, value and headers."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from outbox.protocol import names
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import MAX_INT32, parse_number, refuse_newer
from outbox.protocol.identifiers import UUID_PATTERN, check_uuid, message_id

Header = tuple[str, bytes | None]
Headers = Sequence[Header]
OutgoingHeaders = list[tuple[str, str | bytes | None]]
"""As confluent-kafka types the headers that it is given."""

ANY_PARTITION = -1
"""The real queue id for: by key."""

MAX_MILLISECONDS = 999_999_999_999_999
"""The largest timestamp and immunity time that a half can carry; the year 33658, or microseconds given by mistake."""


class Truth(enum.StrEnum):
    """The role that answers whether a transaction committed."""

    ROW = "row"
    LISTENER = "listener"


@dataclass(frozen=True, slots=True)
class HalfOptions:
    """Options of a half, present only where they are needed.

    Args:
        timestamp: The user's own timestamp, ms since 1970.
        immunity: Check immunity time, ms after the half's append; None: the channel's `transaction_timeout_ms`.
        ordering: `(key,)` if the transaction's ordering key differs from this message's key, with `(None,)` for a
            transaction without order; None if the message's own key is the ordering key.
        incarnation: Incarnation of the database that holds the callback row (R10).
    """

    timestamp: int | None = None
    immunity: int | None = None
    ordering: tuple[bytes | None] | None = None
    incarnation: str | None = None

    def encode(self) -> bytes:
        """Return the header's text; empty without options."""
        parts = []
        if self.timestamp is not None:
            parts.append(f"timestamp={self.timestamp}")
        if self.immunity is not None:
            parts.append(f"immunity={self.immunity}")
        if self.ordering is not None:
            key = self.ordering[0]
            parts.append("unordered" if key is None else f"ordering={_quote(key)}")
        if self.incarnation is not None:
            parts.append(f"incarnation={self.incarnation}")
        return ";".join(parts).encode()


@lru_cache(maxsize=64)
def _quote(key: bytes) -> str:
    """Percent-encode a key; cached, because all halves of a transaction have the same one."""
    return quote_from_bytes(key, safe="")


NO_OPTIONS = HalfOptions()


@dataclass(slots=True, unsafe_hash=True)
class HalfControl:
    """The control headers of one half message.

    Its fields are Final instead of frozen, which takes ten times as long to make: there is one for each half.

    Args:
        topic: Real topic.
        partition: Real queue id, or -1 for "by key".
        transaction_id: UUIDv7 of the transaction.
        position: Place of the message in its transaction, from 0.
        truth: Who answers check requests.
    """

    topic: Final[str]
    partition: Final[int]
    transaction_id: Final[str]
    position: Final[int]
    service: Final[str]
    truth: Final[Truth]
    options: Final[HalfOptions] = NO_OPTIONS

    def encode(self) -> list[tuple[str, bytes]]:
        """Return the control headers, to be put before the user's own."""
        return control_headers(
            self.topic,
            self.partition,
            self.transaction_id,
            self.position,
            self.service,
            self.truth,
            self.options.encode(),
        )

    def ordering_key(self, key: bytes | None) -> bytes | None:
        """Return the transaction's ordering key, given this message's own key; None: never held."""
        return key if self.options.ordering is None else self.options.ordering[0]


_CONTROL = frozenset({names.TARGET_HEADER, names.TRANSACTION_HEADER, names.SERVICE_HEADER, names.OPTIONS_HEADER})
_TRANSACTION = re.compile(f"{names.FORMAT_VERSION};({UUID_PATTERN})/(0|[1-9][0-9]{{0,3}})".encode())
_KEY = re.compile(r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})*")


def parse_half(headers: Headers) -> HalfControl:
    """Read the control headers of a half.

    Raises:
        NewerFormatError: The half is of a newer format: stop the partition, upgrade the relay.
    """
    try:
        return _parse_half(headers)
    except ProtocolError:
        # A newer format may have changed anything but the place of its version.
        for name, value in headers:
            if name == names.TRANSACTION_HEADER and value is not None:
                refuse_newer(value.partition(b";")[0].decode(errors="replace"), "a half")
        raise


def _parse_half(headers: Headers) -> HalfControl:
    control: dict[str, bytes] = {}
    for name, value in headers:
        if name in _CONTROL:
            if name in control or value is None:
                raise ProtocolError(f"header {name} is given twice or without a value")
            control[name] = value
    try:
        transaction_id, position = _parse_transaction(control[names.TRANSACTION_HEADER])
        topic, partition = _parse_target(control[names.TARGET_HEADER])
        service, truth = _parse_service(control[names.SERVICE_HEADER])
    except KeyError as missing:
        raise ProtocolError(f"header {missing.args[0]} is missing") from None
    options = control.get(names.OPTIONS_HEADER)
    return HalfControl(
        topic, partition, transaction_id, position, service, truth, parse_options(options) if options else NO_OPTIONS
    )


def parse_truth(text: str) -> Truth:
    """Read the role that answers whether a transaction committed."""
    try:
        return Truth(text)
    except ValueError:
        raise ProtocolError(f"truth is 'row' or 'listener', not {text[:40]!r}") from None


def parse_key(text: str) -> bytes:
    if not _KEY.fullmatch(text):
        raise ProtocolError("a key is not percent-encoded")
    return unquote_to_bytes(text)


def control_headers(
    topic: str, partition: int, transaction_id: str, position: int, service: str, truth: Truth, options: bytes
) -> list[tuple[str, bytes]]:
    """Return the control headers of a half without making an object: as `HalfControl.encode()`.

    What many halves have in common is made once.
    """
    headers = [
        _target_header(topic, partition),
        (names.TRANSACTION_HEADER, f"{names.FORMAT_VERSION};{message_id(transaction_id, position)}".encode()),
        _service_header(service, truth),
    ]
    if options:
        headers.append((names.OPTIONS_HEADER, options))
    return headers


@lru_cache(maxsize=4096)
def _target_header(topic: str, partition: int) -> tuple[str, bytes]:
    return names.TARGET_HEADER, f"{topic}:{partition}".encode()


@lru_cache(maxsize=64)
def _service_header(service: str, truth: Truth) -> tuple[str, bytes]:
    return names.SERVICE_HEADER, f"{service};{truth}".encode()


def user_headers(headers: Headers) -> list[Header]:
    """Return the user's own headers of a half: everything without the reserved prefix, order and repeats kept."""
    return [header for header in headers if not header[0].startswith(names.HEADER_PREFIX)]


def real_headers(control: HalfControl, headers: Headers, origin: int | str, origin_offset: int) -> OutgoingHeaders:
    """Return the headers of the record on the real topic: the user's own, then id, service and origin (R30).

    Args:
        control: Control headers of the half, or those made from a row of a message table.
        headers: All headers.
        origin: Half partition, or the name of the table source.
        origin_offset: Offset of the half, or id of the row.
    """
    real: OutgoingHeaders = [header for header in headers if not header[0].startswith(names.HEADER_PREFIX)]
    real.append((names.MESSAGE_ID_HEADER, message_id(control.transaction_id, control.position).encode()))
    real.append(_real_service_header(control.service))
    real.append((names.ORIGIN_HEADER, f"{origin}/{origin_offset}".encode()))
    return real


@lru_cache(maxsize=1_024)
def count_header(messages: int) -> tuple[str, bytes]:
    """Return the header of a real record that names how many messages its transaction has (R30)."""
    return names.COUNT_HEADER, str(messages).encode()


@lru_cache(maxsize=4096)
def _real_service_header(service: str) -> tuple[str, bytes]:
    return names.SERVICE_HEADER, service.encode()


def reserved_header(header_names: Iterable[str]) -> str | None:
    """Return the first header name with the reserved prefix, or None."""
    return next((name for name in header_names if name.startswith(names.HEADER_PREFIX)), None)


def _parse_transaction(value: bytes) -> tuple[str, int]:
    match = _TRANSACTION.fullmatch(value)
    if match is None:
        raise ProtocolError(f"header {names.TRANSACTION_HEADER} is malformed: {value[:80]!r}")
    return match[1].decode(), int(match[2])


@lru_cache(maxsize=4096)
def _parse_target(value: bytes) -> tuple[str, int]:
    topic, _, partition = value.decode(errors="replace").rpartition(":")
    if not names.is_topic_name(topic):
        raise ProtocolError(f"header {names.TARGET_HEADER} is malformed: {value[:300]!r}")
    return topic, parse_number(partition, f"the partition in header {names.TARGET_HEADER}", ANY_PARTITION, MAX_INT32)


@lru_cache(maxsize=4096)
def _parse_service(value: bytes) -> tuple[str, Truth]:
    service, _, truth = value.decode(errors="replace").partition(";")
    return names.check_service(service), parse_truth(truth)


@lru_cache(maxsize=4096)
def parse_options(value: bytes) -> HalfOptions:
    """Read the options header.

    Raises:
        ProtocolError: An option is unknown, repeated or malformed. Options are not skipped: a relay that does not
            know one must not guess what it would have meant.
    """
    found: dict[str, str | None] = {}
    for part in value.decode(errors="replace").split(";"):
        name, equals, text = part.partition("=")
        if name not in _OPTIONS:
            raise ProtocolError(f"header {names.OPTIONS_HEADER} has an unknown option {name[:40]!r}")
        if name in found:
            raise ProtocolError(f"option {name!r} is given twice")
        if bool(equals) is (name == _UNORDERED):
            raise ProtocolError(f"option {name!r} must {'not ' if equals else ''}have a value")
        found[name] = text
    incarnation = found.get("incarnation")
    return HalfOptions(
        timestamp=_milliseconds(found.get("timestamp"), "timestamp", 1),  # for 0 librdkafka writes the present time
        immunity=_milliseconds(found.get("immunity"), "immunity", 0),
        ordering=_ordering(found),
        incarnation=None if incarnation is None else check_uuid(incarnation),
    )


_UNORDERED = "unordered"
_OPTIONS = frozenset({"timestamp", "immunity", "ordering", _UNORDERED, "incarnation"})


def _ordering(found: Mapping[str, str | None]) -> tuple[bytes | None] | None:
    ordering = found.get("ordering")
    if _UNORDERED in found:
        if ordering is not None:
            raise ProtocolError("options 'ordering' and 'unordered' exclude each other")
        return (None,)
    return None if ordering is None else (parse_key(ordering),)


def _milliseconds(text: str | None, name: str, minimum: int) -> int | None:
    return None if text is None else parse_number(text, f"option {name!r}", minimum, MAX_MILLISECONDS)
