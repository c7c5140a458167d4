"""Names, ids, and the partition of a key."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import check_uuid, lock_number, make_transaction_id, message_id
from outbox.protocol.names import Channel, check_service, is_internal_topic, is_topic_name, sibling_topic
from outbox.protocol.partitioner import half_partition, murmur2, partition_for_key
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import JAVA_MURMUR2


@some.relaxed
@given(unix_ms=st.integers(0, 2**48 - 1), random=st.binary(min_size=10, max_size=16))
def test_transaction_ids_are_version_7_and_sort_by_time(unix_ms: int, random: bytes) -> None:
    made = uuid.UUID(make_transaction_id(unix_ms, random))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == unix_ms
    assert check_uuid(str(made)) == str(made)


def test_every_random_bit_of_a_transaction_id_is_used() -> None:
    ids = {make_transaction_id(0, (1 << bit).to_bytes(10, "big")) for bit in range(80)}
    assert len(ids) == 74 + 1, "74 random bits, and 6 that version and variant replace"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0197A1B2-c3d4-7e5f-8a6b-7c8d9e0f1a2b",
        "0197a1b2c3d47e5f8a6b7c8d9e0f1a2b",
        "{0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b}",
        "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b\n",
        "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2g",
    ],
)
def test_a_uuid_has_one_form_only(text: str) -> None:
    with pytest.raises(ProtocolError):
        check_uuid(text)


@some.relaxed
@given(st.uuids())
def test_lock_number_fits_a_bigint_and_is_the_last_eight_bytes(found: uuid.UUID) -> None:
    number = lock_number(str(found))
    assert -(2**63) <= number < 2**63
    assert number.to_bytes(8, "big", signed=True) == found.bytes[8:]


def test_message_id_is_transaction_and_position() -> None:
    assert message_id("a", 0) == "a/0"


@pytest.mark.parametrize("name", ["", "HalfOutbox", "-a", "_a", "a.b", "a b", "ä", "a" * 101, "a\n"])
def test_a_channel_name_that_could_confuse_topics_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        Channel(name)


def test_names_derive_from_the_channel() -> None:
    channel = Channel("team-1_a")
    assert channel.topics == ("team-1_a.verdict", "team-1_a.op", "team-1_a.discard", "team-1_a.check", "team-1_a.half")
    assert (channel.relay_group, channel.checker_group) == ("team-1_a-relay", "team-1_a-checker")
    assert channel.transactional_id(12) == "team-1_a-relay-12"
    assert Channel().half_topic == "outbox.half"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 201, "a\n"])
def test_a_group_name_that_headers_could_not_carry_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        check_service(name)
    assert check_service("Shop.eu_1-a") == "Shop.eu_1-a"


def test_topic_names_are_those_of_kafka() -> None:
    assert is_topic_name("Orders.v1_a-b")
    assert is_topic_name("a" * 249)
    assert not any(is_topic_name(name) for name in ("", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 250))


def test_topics_of_own_channel_and_of_kafka_are_internal() -> None:
    channel = Channel("outbox")
    assert all(is_internal_topic(name, channel) for name in [*channel.topics, "__consumer_offsets"])
    assert not is_internal_topic("other.half", channel)
    assert not is_internal_topic("orders", channel)


def test_sibling_is_half_topic_or_its_op_topic() -> None:
    other = Channel("other")
    assert sibling_topic(other.half_topic) == other.op_topic
    names = [other.op_topic, other.verdict_topic, other.check_topic, other.discard_topic]
    assert {sibling_topic(name) for name in names} == {other.half_topic}


@pytest.mark.parametrize("name", ["orders", "half", ".half", "Orders.half", "a.b.half", "other.half.v1", "other-half"])
def test_topic_without_channel_name_has_no_sibling(name: str) -> None:
    assert sibling_topic(name) is None


@pytest.mark.parametrize(("key", "signed"), JAVA_MURMUR2.items())
def test_a_key_goes_where_a_java_producer_would_send_it(key: str, signed: int) -> None:
    for partitions in (1, 2, 3, 12, 1000):
        assert partition_for_key(key.encode(), partitions) == (signed & 0x7FFFFFFF) % partitions


@some.relaxed
@given(key=st.binary(max_size=30), partitions=st.integers(1, 10_000))
def test_every_key_has_a_partition(key: bytes, partitions: int) -> None:
    assert 0 <= murmur2(key) < 2**32
    assert 0 <= partition_for_key(key, partitions) < partitions


@some.relaxed
@given(service=some.services, key=st.binary(max_size=30), ids=st.tuples(st.uuids(), st.uuids()))
def test_one_key_of_a_service_keeps_its_partition(service: str, key: bytes, ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    first, second = (half_partition(service, key, id_.bytes, 12) for id_ in ids)
    assert first == second


def test_transactions_without_an_ordering_key_are_spread() -> None:
    ids = (uuid.UUID(make_transaction_id(number, bytes(10))) for number in range(200))
    assert len({half_partition("shop", None, id_.bytes, 12) for id_ in ids}) == 12
