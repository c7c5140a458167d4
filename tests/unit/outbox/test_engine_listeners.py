"""The library's listeners: once for each engine, also for connections that are open, and beside those of others."""

import pytest
from sqlalchemy import Connection, create_engine, event

from outbox._publish import sqlalchemy_session


def test_they_are_registered_once_and_called_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(sqlalchemy_session, "_current", heard.append)
    engine, other = create_engine("sqlite://"), create_engine("sqlite://")

    def users(_: Connection) -> None:
        heard.append("the user's")

    with engine.connect() as opened, other.connect() as foreign:
        event.listen(opened, "commit", users)
        for _ in range(2):
            with engine.connect() as connection:
                sqlalchemy_session._listen(connection)
        opened.begin().commit()
        foreign.begin().commit()
    assert heard == ["the user's", opened]
