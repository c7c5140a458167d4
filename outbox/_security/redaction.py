"""Remove connection strings and control characters from text before it is printed or logged. Pure.

Messages are built without secrets. This is the second line: it covers what a driver, a parser or a traceback quotes.
"""

import re
import unicodedata

HIDDEN = "***"

_WITH_USER = re.compile(r"([a-z][\w+.:-]*:/+)[^\n]*@", re.IGNORECASE)
"""A URL with user information; a password may hold any character, so everything up to the last `@` of the line goes.
One slash is enough: a path drops the second."""
_POSTGRES = re.compile(r"\b(p(?:ost|g)[\w+.-]*:/+)(?!\*\*\*@)\S*", re.IGNORECASE)
"""A Postgres URL without user information: `postgresql://user:password` has none for a parser."""
_WITH_PASSWORD = re.compile(r"[a-z][\w+.-]*:/+[^@\s]*:[^\n]*@", re.IGNORECASE)
_KEYWORD = re.compile(r"(\bpassword\s*=\s*)(?!\*\*\*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)

_SHOWN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories that a terminal acts on, reorders text by, or cannot show."""


def redact(text: str) -> str:
    """Return the text with every connection string and `password=` value replaced by `***`."""
    if ":/" in text:
        text = _POSTGRES.sub(rf"\1{HIDDEN}", _WITH_USER.sub(rf"\1{HIDDEN}@", text))
    return _KEYWORD.sub(rf"\1{HIDDEN}", text)


def is_connection_string(text: str) -> bool:
    """Return whether the text holds a Postgres URL, a URL with a password, or a `password=` value."""
    return any(pattern.search(text) for pattern in (_POSTGRES, _WITH_PASSWORD, _KEYWORD))


def visible(text: str) -> str:
    r"""Return the text with control and format characters as escapes, such as `\x1b`; line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _SHOWN_CATEGORIES:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def printable(value: object) -> object:
    """Return the value with every text in it redacted and visible; lists and dictionaries are copied."""
    if isinstance(value, str):
        return visible(redact(value))
    if isinstance(value, dict):
        return {key: printable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [printable(entry) for entry in value]
    return value
