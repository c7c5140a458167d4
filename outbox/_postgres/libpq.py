"""Whether psycopg finds libpq; pip installs psycopg without it."""

from importlib import import_module


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
