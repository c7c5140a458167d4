"""Errors of setting a machine up: Java, jars, servers. Each message is one sentence on what is wrong and what to do.

SetupError
├── NoJavaError    no Java of the needed version
├── FetchError     jars are missing and cannot be fetched
└── ChecksumError  a fetched jar is not the one that the lock names
"""

from __future__ import annotations

from outbox.errors import OutboxError


class SetupError(OutboxError):
    """Something that the machine must have is missing or does not work."""


class NoJavaError(SetupError):
    """No Java of the needed version was found."""


class FetchError(SetupError):
    """Jars are missing and cannot be fetched, or the lock file is wrong."""


class ChecksumError(SetupError):
    """A fetched jar is not the one that the lock names; it was deleted."""
