"""Fields of records, read strictly: of the right type, within bounds, in the one form in which they are written."""

import re
from collections.abc import Mapping
from typing import Any

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_VERSION_DIGITS = 9


def parse_number(text: str, what: str, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Read a decimal number: ASCII digits, no sign but a minus, no leading zero."""
    if not _NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise ProtocolError(f"{what} is not a number from {minimum} to {maximum}: {text[:40]!r}")
    return int(text)


def get_number(fields: Mapping[str, Any], name: str, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Return a number of a JSON object; `true`, `1.0` and `"1"` are none."""
    value = fields.get(name)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ProtocolError(f"field {name!r} is not a whole number from {minimum} to {maximum}")
    return value


def get_text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not is_utf8(value):
        raise ProtocolError(f"field {name!r} is not a string")
    return value


def get_optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    return None if name in fields and fields[name] is None else get_text(fields, name)


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode a text: everything but half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_newer(version: str, what: str) -> None:
    """Refuse a version of the format that is newer than this process."""
    if not (version.isascii() and version.isdigit()):
        return
    number = version.lstrip("0") or "0"
    if len(number) > _VERSION_DIGITS or int(number) > names.FORMAT_VERSION:
        raise NewerFormatError(
            f"{what} of format {number[:40]}, this process reads {names.FORMAT_VERSION}: upgrade it before it goes on"
        )
