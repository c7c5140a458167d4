"""The table of rights: its names are the protocol's, and each right is there once, with nothing implied."""

from outbox._rules.role_rights import NEEDS, Kind, Operation, Right, Role, Scope, names_missing, rights_of
from outbox.protocol.names import Channel

CHANNEL = Channel("shop")
SCOPE = Scope(CHANNEL, ("orders",), ("billing",), ("stock",))
RELAY = (
    *(f"{right} on topic shop.{kind}" for kind in ("half", "op", "verdict") for right in ("READ", "DESCRIBE_CONFIGS")),
    *(f"{right} on topic shop.check" for right in ("WRITE", "DESCRIBE_CONFIGS")),
    *(f"{right} on topic shop.discard" for right in ("READ", "WRITE", "DESCRIBE_CONFIGS")),
    *(f"{right} on topic orders" for right in ("WRITE", "DESCRIBE_CONFIGS")),
    *("READ on group shop-relay", "WRITE on transactional id shop-relay-*"),
    *("READ on group shop-table.stock", "WRITE on transactional id shop-table.stock"),
)


def required(*roles: Role, scope: Scope = SCOPE) -> list[str]:
    return [str(right) for right in rights_of(roles, scope) if not right.otherwise]


def test_each_role_has_its_needs() -> None:
    assert set(NEEDS) == set(Role)
    assert [role for role in Role if not role.meaning] == []
    assert rights_of([Role.TABLE_APPLICATION], SCOPE) == []


def test_the_relay_has_exactly_these_rights_that_it_cannot_work_without() -> None:
    assert sorted(required(Role.RELAY)) == sorted(RELAY)
    assert not any("table" in right for right in required(Role.RELAY, scope=Scope(CHANNEL, ("orders",))))
    own = {f"{right} on topic shop.progress" for right in ("READ", "DESCRIBE_CONFIGS")}
    assert set(required(Role.TABLE_RELAY)) == {right for right in RELAY if right.endswith(("orders", "stock"))} | own


def test_the_names_are_those_of_the_channel() -> None:
    known = {
        *(*CHANNEL.topics, CHANNEL.progress_topic),
        CHANNEL.relay_group,
        CHANNEL.checker_group,
        CHANNEL.listener_group("billing"),
        CHANNEL.table_group("stock"),
        CHANNEL.transactional_id(0).removesuffix("0"),
        *("orders", "__consumer_offsets", "__transaction_state", "kafka-cluster"),
    }
    rights = rights_of(Role, SCOPE)
    assert {right.name for right in rights} == known
    assert len({(right.resource, right.operation) for right in rights}) == len(rights)


def test_only_relay_and_administrator_may_read_the_relays_group() -> None:
    """With READ on it a client can join the group and commit a checkpoint."""
    right = Right(Kind.GROUP, CHANNEL.relay_group, Operation.READ)
    assert {role for role in Role if right in rights_of([role], SCOPE)} == {Role.RELAY, Role.ADMINISTRATOR}


def test_only_checker_and_operators_may_write_verdicts() -> None:
    """Whoever may, overrules all others (R65); they in turn write no op markers of producers."""
    roles = {Role.CHECKER, Role.OPERATOR}
    assert {role for role in Role if "WRITE on topic shop.verdict" in required(role)} == roles
    assert {role for role in Role if "WRITE on topic shop.op" in required(role)} == {Role.APPLICATION}


def test_no_application_may_write_to_a_real_topic() -> None:
    roles = (Role.APPLICATION, Role.LISTENER)
    assert "WRITE on topic orders" not in required(*roles)
    assert "READ on topic orders" not in required(*roles)


def test_describe_is_left_out_beside_read_or_write_that_is_needed_as_much() -> None:
    assert "DESCRIBE on topic shop.check" in required(Role.APPLICATION)
    assert "DESCRIBE on topic shop.check" not in required(Role.APPLICATION, Role.LISTENER)
    assert "READ on topic shop.check" in required(Role.APPLICATION, Role.LISTENER)


def test_a_right_that_one_role_needs_and_another_could_lack_is_needed() -> None:
    (optional,) = (right for right in rights_of([Role.RELAY], SCOPE) if str(right) == "READ on topic orders")
    assert optional.otherwise
    assert "READ on topic orders" in required(Role.RELAY, Role.LAND)


def test_prefixes_and_siblings_of_topics() -> None:
    scope = Scope(CHANNEL, ("eu.*", "*", "x.check", "y.half"))
    found = [right for right in rights_of([Role.APPLICATION], scope) if right.operation is Operation.DESCRIBE]
    expected = {("eu.", True), ("*", False), ("x.half", False), ("y.op", False)}
    assert {(right.name, right.prefixed) for right in found} >= expected


def test_names_that_a_role_needs_are_asked_for() -> None:
    assert names_missing([Role.RELAY], Scope(CHANNEL)) == ["topic"]
    assert names_missing([Role.APPLICATION, Role.LISTENER], Scope(CHANNEL)) == ["topic", "service"]
    assert names_missing([Role.CHECKER, Role.ADMINISTRATOR], Scope(CHANNEL)) == []
