"""Each drill of docs/operations/drills.md, played again: a command that prints something else breaks the page."""

import re
from collections.abc import Callable

import pytest

from stack import Stack
from tests.drills.page import DRILLS, LONG, PAGE, written
from tests.drills.scene import Scene, played
from tests.support.own_stack import own_stack

RESOLVED_SECONDS = 60.0
"""Where no server has to come back, on a busy machine, too."""
own = own_stack()


def test_the_page_has_all_drills_in_their_order() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(DRILLS)


@pytest.mark.parametrize(
    ("symptom", "play"),
    [pytest.param(name, play, marks=[pytest.mark.long] * (play in LONG), id=name) for name, play in DRILLS.items()],
)
def test_drill_ends_as_the_page_shows(own: Stack, symptom: str, play: Callable[[Scene], None]) -> None:
    scene = played(own, play)
    assert scene.transcript == written(symptom)[1], "run `python -m tests.drills`, and look at what it changes"
    assert play in LONG or scene.resolved < RESOLVED_SECONDS
