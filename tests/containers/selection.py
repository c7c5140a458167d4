"""A pytest plugin: of the tests that were found, only those that run on the shared servers."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that start servers of their own or need none: containers would prove nothing there."""
    chosen = [item for item in items if "servers" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
