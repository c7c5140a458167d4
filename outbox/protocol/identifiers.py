"""Transaction ids, message ids and the advisory lock's number."""

import re
import uuid

from outbox.protocol.errors import ProtocolError

UUID_PATTERN = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
UUID_LENGTH = 36
"""Of what fits it, characters."""
_UUID = re.compile(UUID_PATTERN)


def make_transaction_id(unix_ms: int, random: bytes) -> str:
    """Compose a UUIDv7 (RFC 9562): time first, so that rows of one day are together in the primary key.

    Args:
        unix_ms: Milliseconds since 1970; only a hint, no decision rests on it (R25).
        random: At least 10 random bytes.
    """
    tail = bytearray(random[:10])
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return str(uuid.UUID(bytes=unix_ms.to_bytes(6, "big") + bytes(tail)))


def table_transaction_id(xid: int, started_us: int) -> str:
    """Compose the transaction id of table mode: a UUIDv7 that carries the xid of the local transaction.

    All rows of a local transaction have the same one, by whatever program they were inserted.

    Args:
        xid: The row's xid8, less than 2**62.
        started_us: Start of the local transaction, microseconds since 1970.
    """
    unix_ms, rest_us = divmod(started_us, 1_000)
    if unix_ms >> 48 or xid >> 62:
        raise ValueError(f"a transaction that started {unix_ms} ms after 1970, with xid {xid}, has no id")
    low = 1 << 63 | xid  # uuid.UUID takes three times as long, and f-strings half as long again
    parts = unix_ms >> 16, unix_ms & 0xFFFF, rest_us * 4, low >> 48, low & 0xFFFF_FFFF_FFFF
    return "%08x-%04x-7%03x-%04x-%012x" % parts  # noqa: UP031 - as above


def xid_of(transaction_id: str) -> int:
    """Return the xid8 that a transaction id of table mode carries."""
    return uuid.UUID(transaction_id).int & ((1 << 62) - 1)


def started_us_of(transaction_id: str) -> int:
    """Return the start of the local transaction that a transaction id of table mode carries, us since 1970."""
    return created_ms(transaction_id) * 1_000 + (uuid.UUID(transaction_id).int >> 66 & 0x3FF)


def created_ms(transaction_id: str) -> int:
    """Return the time with which a UUIDv7 begins, ms since 1970 by its maker's clock."""
    return int(transaction_id[:8] + transaction_id[9:13], 16)


def check_uuid(text: str) -> str:
    """Return a lower-case UUID in its 36-character form."""
    if not _UUID.fullmatch(text):
        raise ProtocolError(f"{text!r} is not a lower-case UUID of 36 characters")
    return text


def message_id(transaction_id: str, position: int) -> str:
    """Return the id by which consumers deduplicate: `<transaction id>/<position>`."""
    return f"{transaction_id}/{position}"


def lock_number(transaction_id: str) -> int:
    """Return the number of a transaction's advisory lock: the last 8 bytes of its id, big endian, as a signed bigint.

    These bytes are the random part of a UUIDv7. Two transactions with one number only delay each other's check.
    """
    return int.from_bytes(uuid.UUID(transaction_id).bytes[8:], "big", signed=True)
