"""An exception of a signal handler at a chosen line."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interruption(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises at one line of those in which a signal handler may run; counts them."""

    def __init__(self, line: int, is_traced: Callable[[str], bool], may_raise: Callable[[FrameType], bool]) -> None:
        self._line = line
        self._is_traced = is_traced
        self._may_raise = may_raise
        self.lines = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self._is_traced(frame.f_code.co_filename):
            return None
        if event == "line" and self._may_raise(frame):
            self.lines += 1
            if self.lines == self._line:
                raise Interruption
        return self._trace
