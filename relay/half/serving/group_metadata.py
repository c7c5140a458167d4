"""The newest group metadata of the subscribed consumer, with which offsets are committed (R15, H5)."""

from __future__ import annotations

from outbox._service.membership import generation
from relay.delivery.producer import DeliveryError


class GroupMetadata:
    """The metadata; the consumer's thread sets it, the workers' threads read it."""

    def __init__(self) -> None:
        self.newest = b""

    def generation(self) -> int:
        """Return the generation of the group; negative: the consumer is in none."""
        return generation(self.newest)

    def for_commit(self) -> bytes:
        """Return the metadata for a commit.

        Raises:
            DeliveryError: It has no generation, and would fence no other relay.
        """
        metadata = self.newest
        if generation(metadata) < 0:
            raise DeliveryError(
                f"the consumer has no generation (it has {generation(metadata)}): it is not a member of the relay's "
                "group at present; the commit is repeated after it has joined again"
            )
        return metadata
