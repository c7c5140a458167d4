"""Packages that an application may lack: whether an object is psycopg's, and which extra brings what is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


def is_psycopg(found: object, *classes: str) -> bool:
    """Return whether an object is of one of psycopg's classes: who has one has imported psycopg."""
    module = sys.modules.get("psycopg")
    return isinstance(found, tuple(getattr(module, name, ()) for name in classes))


@contextmanager
def extra(names: str, what: str) -> Iterator[None]:
    """Import packages that extras bring, whose names have commas between them."""
    try:
        yield
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        why = None if isinstance(error, ModuleNotFoundError) else missing_libpq()
        install = f"{what} needs an extra: pip install 'kafka-transactional-outbox[{names}]' ({cause})"
        raise (ImportError if why else type(cause))(why or install, name=cause.name) from cause


def missing_libpq() -> str | None:
    """Return what to install if psycopg is there and cannot load libpq; None if it can, or is not there."""
    try:
        import_module("psycopg")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        return (
            f"psycopg cannot load libpq ({str(error).splitlines()[0]}): "
            "pip install 'kafka-transactional-outbox[binary]', or install the system's libpq (Debian: libpq5)"
        )
    return None
