"""The allocator of the services."""

import gc
import platform
import sys

import pytest

from outbox._service.process import collect_rarely, share_one_arena
from tests.support.commands import ran

_COUNT = """
import threading
from outbox._service.process import share_one_arena
{call}
for _ in range(8):
    thread = threading.Thread(target=lambda: bytearray(100_000))
    thread.start()
    thread.join()
import ctypes
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no arenas")
@pytest.mark.parametrize(("call", "is_one"), [("assert share_one_arena()", True), ("", False)])
def test_all_threads_share_one_arena(call: str, *, is_one: bool) -> None:
    told = ran([sys.executable, "-c", _COUNT.format(call=call)], check=True).stdout
    assert (told.count("<heap nr=") == 1) is is_one


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not share_one_arena()


def test_garbage_is_looked_for_rarely_and_not_among_the_modules() -> None:
    before = gc.get_threshold()  # not Python's own where an earlier test has called collect_rarely()
    gc.set_threshold(700)
    try:
        collect_rarely()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 7_000
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
