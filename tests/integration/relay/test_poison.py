"""One record that cannot be read or kept does not stop the rest (R37, R40)."""

import random
import uuid

import pytest
from confluent_kafka import KafkaError, Producer

from outbox._service.exit_codes import Exit
from outbox.protocol.discard import DiscardReason
from tests.integration.relay.test_halts import publish, start_halted, values
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, get

Headers = list[tuple[str, str | bytes | None]]

SEED = 4711
RECORDS = 300


def producer(site: Site) -> Producer:
    return Producer({**site.kafka(), "compression.type": "zstd", "message.max.bytes": 200_000_000, "linger.ms": 0})


def store_compressed(site: Site, topic: str) -> None:
    """Let a topic store batches as producers compress them, without R52."""
    site.set_topic(topic, "compression.type", "producer")


def write_packed(site: Site, topic: str, size_bytes: int, key: bytes | None = None, partition: int = -1) -> None:
    """Write zeros as a compressed batch; a broker refuses it until it has applied what `store_compressed` set."""
    client = producer(site)
    errors: list[KafkaError | None] = []

    def accepted() -> bool:
        client.produce(topic, bytes(size_bytes), key, partition, on_delivery=lambda error, _: errors.append(error))
        assert client.flush(60) == 0
        assert errors[-1] is None or errors[-1].code() == KafkaError.MSG_SIZE_TOO_LARGE, errors
        return errors[-1] is None

    wait_until(accepted, explain=lambda: str(errors[-1]))


def test_broker_refuses_a_batch_that_unpacks_to_too_much(site: Site) -> None:
    """A batch of 3 kB would take 90 MB of memory in a relay, and some of them all that it has (R52)."""
    site.create("orders")
    errors: list[KafkaError | None] = []
    client = producer(site)
    for topic in (site.channel.half_topic, site.channel.op_topic, site.channel.check_topic):
        client.produce(topic, bytes(90_000_000), None, 0, on_delivery=lambda error, _: errors.append(error))
    assert client.flush(60) == 0
    assert [error.code() if error else None for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE] * 3


def test_half_that_unpacks_to_too_much_leaves_as_a_stub(site: Site) -> None:
    site.create("orders")
    store_compressed(site, site.channel.half_topic)
    write_packed(site, site.channel.half_topic, 5 * 2**20, partition=0)
    publish(site, ["behind it"], 0)
    relay = site.relay()
    wait_until(lambda: values(site) == ["behind it"], explain=site.logs)
    wait_until(lambda: len(site.manifests()) == 1, explain=site.logs)
    (found,) = site.manifests()
    assert (found.reason, found.partition, found.offsets) == (DiscardReason.MALFORMED, 0, ((0, 0),))
    assert "Partition worker restarted" not in relay.output()
    shown = run_command(site, "trace", found.transaction_id, "--since", "1h")
    assert shown.returncode == 0, shown.stderr


@pytest.mark.long
def test_skip_passes_by_a_newer_half_and_a_newer_op(site: Site) -> None:
    site.create("orders")
    site.send_half("2;more")
    site.produce(site.channel.op_topic, b"C", None, 0, headers=[("outbox-op", b"3;producer")])
    publish(site, ["behind it"], 0)
    port = free_port()
    start_halted(site, port, f"{site.channel.half_topic}/0 offset 0")
    readable = run_command(site, "skip", "half/0", "--offset", "1", "--reason", "no")
    assert (readable.returncode, "can be read" in readable.stderr) == (Exit.CONFIGURATION, True), readable.stderr
    missing = run_command(site, "skip", "half/0", "--offset", "99", "--reason", "no")
    assert "does not exist" in missing.stderr
    for place in ("half/0", "op/0"):
        done = run_command(site, "skip", place, "--offset", "0", "--reason", "a newer library")
        assert done.returncode == 0, done.stderr
    site.checker()
    wait_until(lambda: values(site) == ["behind it"], timeout=60, explain=site.logs)
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
    (found,) = site.manifests()
    assert (found.reason, found.offsets) == (DiscardReason.MALFORMED, ((0, 0),))
    assert found.detail.startswith("skipped by unauthenticated:")
    assert found.detail.endswith(": a newer library")


def test_relay_and_checker_survive_random_records(site: Site) -> None:
    """Random bytes on all topics of a channel, and each message that was committed is delivered once."""
    site.create("orders")
    client, chance = producer(site), random.Random(SEED)
    publish(site, ["first"], 0)
    for topic in site.channel.topics:
        for number in range(RECORDS):
            client.produce(topic, *_random_record(chance), number % 2, headers=_random_headers(chance))
    assert client.flush(30) == 0
    publish(site, ["second"], 1)
    relay, checker = site.relay(), site.checker()
    wait_until(lambda: values(site) == ["first", "second"], timeout=60, explain=site.logs)
    publish(site, ["third"], 0)
    wait_until(lambda: values(site) == ["first", "second", "third"], explain=site.logs)
    assert (relay.running, checker.running) == (True, True)


def _random_record(chance: random.Random) -> tuple[bytes | None, bytes | None]:
    id_ = uuid.UUID(int=chance.getrandbits(128), version=4)
    key = chance.choice([f"{id_}/0", f"{id_}/manifest", f"{id_}", f"skip/{id_}/0/1", "x"])
    value = chance.choice([None, b"", b"{}", b"null", b'{"version":1}', chance.randbytes(chance.randrange(200))])
    return value, key.encode()


def _random_headers(chance: random.Random) -> Headers:
    names = ["outbox-target", "outbox-transaction", "outbox-service", "outbox-options", "outbox-op", "other"]
    texts = [b"", b"orders:-1", b"1;x/0", f"1;{uuid.UUID(int=7, version=4)}/0".encode(), b"orders;row", b"1;producer"]
    return [(chance.choice(names), chance.choice([*texts, chance.randbytes(20)])) for _ in range(chance.randrange(5))]


@pytest.mark.long
def test_half_that_cannot_be_unpacked_halts_until_it_is_skipped(site: Site) -> None:
    """Kafka's client refuses to unpack more than `receive.message.max.bytes`, and reads the same offset again."""
    site.create("orders")
    store_compressed(site, site.channel.half_topic)
    publish(site, ["before it"], 0)
    write_packed(site, site.channel.half_topic, 90_000_000, partition=0)
    publish(site, ["behind it"], 0)
    port = free_port()
    start_halted(site, port, f"{site.channel.half_topic}/0 offset 1 cannot be read")
    assert values(site) == ["before it"]
    done = run_command(site, "skip", "half/0", "--offset", "1", "--reason", "90 MB of zeros")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: values(site) == ["before it", "behind it"], timeout=60, explain=site.logs)
    (found,) = site.manifests()
    assert (found.reason, found.offsets) == (DiscardReason.MALFORMED, ((0, 1),))
    assert found.detail.endswith(": 90 MB of zeros")
