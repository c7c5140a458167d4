"""Put the packages of the services into their distribution.

In the repository the packages lie beside this folder, in an unpacked sdist they lie in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("relay", "checker", "spark_jobs", "stack")


class Packages(BuildHookInterface):  # type: ignore[misc,type-arg]  # hatchling ships no types to everybody
    """Name the folders of the packages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folders to sdists and wheels. An editable install adds none: it finds them by path.

        Args:
            version: `standard` or `editable`.
        """
        if version == "editable":
            return
        here = Path(self.root)
        base = here if (here / PACKAGES[0]).is_dir() else here.parent
        for name in PACKAGES:
            if not (base / name / "__init__.py").is_file():
                raise FileNotFoundError(f"the package {name} is not in {base}")
            build_data["force_include"][str(base / name)] = name
