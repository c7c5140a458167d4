"""What a secured stack needs, and what it leaves behind."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Stack, StartError
from stack.postgres_binaries import system_binaries


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="outbox-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_secured_stack_without_cryptography_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stack.security.site_security", raising=False)
    monkeypatch.setitem(sys.modules, "stack.security.site_security", None)
    with pytest.raises(StartError, match=r"pip install '.*\[secured-stack\]'"):
        Stack(secured=True, data_dir=folder).start()


def test_machine_without_postgres_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(StartError, match="Debian: postgresql"):
        system_binaries()


@pytest.mark.long
def test_certificates_are_gone_with_the_stack_and_the_data_stays(folder: Path) -> None:
    """The next stack on the same data has new ones."""
    seen = []
    for _ in range(2):
        with Stack(secured=True, standby=True, data_dir=folder / "kept") as stack:
            assert stack.standby is not None
            certificate = stack.security.authority.certificate
            seen.append(certificate.read_bytes())
        assert not certificate.parent.exists()
    assert seen[0] != seen[1]
