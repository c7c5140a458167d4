"""Memory that librdkafka lets go stays usable: glibc's allocator would keep a store of it for each of its threads."""

from __future__ import annotations

import ctypes
import platform

_M_ARENA_MAX = -8
"""Of mallopt(3)."""


def share_one_arena() -> bool:
    """Let all threads allocate from one arena; call it before there are any.

    What the fetching threads queue, and the reading thread frees, else scatters over many arenas, none of which can
    shrink.

    Returns:
        Whether the C library is glibc, and took it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))
