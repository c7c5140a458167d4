"""Whether an object is psycopg's, and whether psycopg finds libpq: an application may have another driver."""

import sys
from importlib import import_module


def is_psycopg(found: object, *classes: str) -> bool:
    """Return whether an object is of one of psycopg's classes: who has one has imported psycopg."""
    module = sys.modules.get("psycopg")
    return isinstance(found, tuple(getattr(module, name, ()) for name in classes))


def missing_libpq() -> str | None:
    """Return what to install if psycopg is there and cannot load libpq; None if it can, or is not there."""
    try:
        import_module("psycopg")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        reason = str(error).splitlines()[0]
        return (
            f"psycopg cannot load libpq ({reason}): pip install 'kafka-transactional-outbox[binary]', or install the "
            "system's libpq (Debian: libpq5)"
        )
    return None
