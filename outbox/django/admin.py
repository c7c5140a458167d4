"""The rows in Django's admin, to look at only: `outbox discarded` delivers and drops."""

from typing import Any

from django.contrib import admin

from outbox.django.models import DiscardedMessage, WaitingMessage


@admin.register(WaitingMessage, DiscardedMessage)
class Rows(admin.ModelAdmin):  # type: ignore[misc]  # Django has no types
    """What waits; or what was discarded, and why."""

    list_filter = ("topic",)

    def get_list_display(self, request: Any) -> list[str]:
        """Return all columns."""
        del request
        return [field.name for field in self.model._meta.fields]  # noqa: SLF001 - public, by its manual

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: the rows are the outbox's."""
        del request, obj
        return False

    has_change_permission = has_delete_permission = has_add_permission
