"""Tests of the shop: with the outbox in memory on any database, and with the rows of the test's own transaction."""

from contextlib import suppress
from unittest import skipUnless

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase

from outbox import Message
from outbox.django import publish
from outbox.django.testing import captured_messages
from outbox.errors import UsageError
from outbox.testing import assert_published


class OrderTest(TestCase):  # type: ignore[misc]  # Django has no types
    """What a customer sees, and what other services see."""

    def test_an_order_is_published(self) -> None:
        """The message is there with the order."""
        with captured_messages() as outbox, self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders", {"what": "tea"})
        assert answer.status_code == 201
        assert_published(
            outbox, "orders", key=str(answer.json()["id"]), value={**answer.json(), "what": "tea"}, count=1
        )

    def test_a_rollback_takes_the_message_along(self) -> None:
        """An exception leaves neither."""
        with captured_messages() as outbox:
            with suppress(ZeroDivisionError), transaction.atomic():
                publish(Message("orders", value="never"))
                raise ZeroDivisionError
            assert_published(outbox.uncommitted, "orders", count=0)

    def test_a_message_outside_atomic_is_refused(self) -> None:
        """As in production, although the test itself is in a transaction."""
        with captured_messages(), self.assertRaisesMessage(UsageError, "transaction.atomic()"):
            publish(Message("orders", value="alone"))

    @skipUnless(connection.vendor == "postgresql", "needs the table")
    def test_the_row_is_in_the_table(self) -> None:
        """The real outbox: the test's own transaction has the row, and the admin shows it without its content."""
        answer = self.client.post("/orders", {"what": "tea"})
        assert_published(connection, "orders", value={**answer.json(), "what": "tea"}, count=1)
        self.client.force_login(User.objects.create_superuser("root"))
        shown = self.client.get("/admin/outbox/waitingmessage/").content.decode()
        assert "orders" in shown
        assert "tea" not in shown
        assert self.client.get("/admin/outbox/waitingmessage/add/").status_code == 403
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE outbox_message RENAME TO gone")
        assert "GRANT SELECT" in self.client.get("/admin/outbox/waitingmessage/", follow=True).content.decode()
