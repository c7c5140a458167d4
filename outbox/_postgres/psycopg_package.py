"""Whether an object is psycopg's: an application may have another driver."""

import sys


def is_psycopg(found: object, *classes: str) -> bool:
    """Return whether an object is of one of psycopg's classes: who has one has imported psycopg."""
    module = sys.modules.get("psycopg")
    return isinstance(found, tuple(getattr(module, name, ()) for name in classes))
