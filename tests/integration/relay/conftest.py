"""Servers with an authorizer, for tests that take rights away."""

from collections.abc import Iterator

import pytest

from stack import Stack
from tests.support.harness import Site
from tests.support.own_stack import own_stack
from tests.support.owners import OWNERS, Owner
from tests.support.rights import AUTHORIZER
from tests.support.servers import UNFENCED

guarded = own_stack(kafka_settings=AUTHORIZER | UNFENCED)


@pytest.fixture
def own(guarded: Stack) -> Iterator[Site]:
    with Site(guarded.bootstrap_servers, guarded.postgres_url) as made:
        yield made


@pytest.fixture(params=sorted(OWNERS))
def owner(request: pytest.FixtureRequest) -> Owner:
    return OWNERS[request.param]
