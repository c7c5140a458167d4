"""Whether a consumer has joined its group, from its group metadata. Pure."""

from __future__ import annotations

import sys

_GENERATION = slice(7, 11)  # librdkafka's opaque metadata: "CGMDv2:", then the generation in this machine's byte order


def generation(group_metadata: bytes) -> int:
    """Return the generation in a consumer's group metadata, -1 if it is in none."""
    if not group_metadata:
        return -1
    return int.from_bytes(group_metadata[_GENERATION], sys.byteorder, signed=True)


def group_name(group_metadata: bytes) -> str:
    """Return the name of the group in a consumer's group metadata."""
    return group_metadata[_GENERATION.stop :].partition(b"\0")[0].decode()


def not_joined(group_metadata: bytes, group: str) -> str | None:
    """Return why a service is not ready, if its consumer is not a member of its group.

    A member without partitions (a standby) is ready.

    Args:
        group_metadata: Of the consumer.
        group: Name of the group.
    """
    return f"the consumer has not joined group {group}" if generation(group_metadata) < 0 else None
