"""A Kafka where rights can be taken away from those who connect without a name, as all tests do."""

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.harness import Site

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a Kafka with rights; what has none of its own is open to everybody."""

_ALL = AclOperation.ALL


def allow_only(site: Site, kind: ResourceType, name: str, *left: AclOperation) -> None:
    """Leave only these rights on a topic or service to those who are not `nobody`."""
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", right, AclPermissionType.ALLOW)
        for who, rights in (("User:nobody", (_ALL,)), ("User:ANONYMOUS", left))
        for right in rights
    ]
    for future in site.admin.create_acls(rules).values():
        future.result(20)


def allow_all(site: Site, kind: ResourceType, name: str) -> None:
    rules = AclBindingFilter(
        kind,
        name,
        ResourcePatternType.LITERAL,
        None,  # type: ignore[arg-type]  # of anybody, as its documentation allows
        None,  # type: ignore[arg-type]  # as above
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in site.admin.delete_acls([rules]).values():
        future.result(20)
