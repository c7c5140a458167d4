"""The licences of what the relay and the checker install, for docs/reference/licences.md."""

import re
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import metadata
from pathlib import Path
from typing import cast

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([A-Za-z0-9][^\\]*?) ?\\?$", re.MULTILINE)
_CLASSIFIER = "License :: OSI Approved :: "


def licences() -> Iterator[tuple[str, str, str]]:
    """Return name, version and licence of each package that requirements-services.txt pins for this platform."""
    for pin in _PIN.findall((ROOT / "requirements-services.txt").read_text()):
        requirement = Requirement(pin)
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement.name, str(requirement.specifier).removeprefix("=="), _licence(requirement.name)


def _licence(name: str) -> str:
    # `PackageMetadata` has the interface of a message, which its type does not say.
    found = cast("Message", metadata(name))
    classified = [each.removeprefix(_CLASSIFIER) for each in found.get_all("Classifier") or () if "License" in each]
    licence = found["License-Expression"] or ", ".join(classified) or found["License"]
    if not licence:
        raise ValueError(f"{name} names no licence")
    return str(licence)
