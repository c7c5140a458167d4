"""The secured servers, which several modules share."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from examples.flights.certificates import Security
from stack import Stack
from tests.support.servers import UNFENCED


@pytest.fixture(scope="package")
def secured() -> Iterator[Stack]:
    """Servers with TLS where a client with a name has no right without an ACL, and where a transaction has been."""
    with Stack(security=Security, kafka_settings=UNFENCED) as running:
        first = Producer({"bootstrap.servers": running.bootstrap_servers, "transactional.id": "first"})
        first.init_transactions(60)  # Kafka makes __transaction_state
        yield running
