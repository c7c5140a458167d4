"""A real Kafka and a real Postgres from package registries, without Docker: `with Stack() as stack: …`."""

from stack.errors import PortInUseError, StartError
from stack.postgres import postgres_alone
from stack.servers import Stack

__all__ = ["PortInUseError", "Stack", "StartError", "postgres_alone"]
