"""As much of Postgres' protocol as a proxy must know to see a COMMIT. Pure."""

import struct

LENGTH_BYTES = 4

_NO_STARTUP_YET = {80877103, 80877104}
"""Requests for TLS and for GSS encryption: one byte answers them, and the start-up message follows."""


def begins_session(message: bytes) -> bool:
    """Whether an untyped message is the last of its kind: typed ones follow."""
    (code,) = struct.unpack_from("!i", message, LENGTH_BYTES)
    return code not in _NO_STARTUP_YET


def is_commit(kind: bytes, body: bytes) -> bool:
    """Whether a client's message runs COMMIT: as a simple query, or as one that is parsed."""
    if kind == b"Q":
        statement = body
    elif kind == b"P":
        statement = body.partition(b"\0")[2]
    else:
        return False
    return statement.lstrip()[:6].upper() == b"COMMIT"
