"""The rows in Django's admin, to look at only: `outbox discarded` delivers and drops."""

from typing import Any

from django.contrib import admin, messages
from django.db import DatabaseError, router, transaction
from django.shortcuts import redirect

from outbox.django.models import DiscardedMessage, WaitingMessage


@admin.register(WaitingMessage, DiscardedMessage)
class Rows(admin.ModelAdmin):  # type: ignore[misc]  # Django has no types
    """What waits; or what was discarded, and why."""

    list_filter = ("topic",)

    def get_list_display(self, request: Any) -> list[str]:
        """Return all columns."""
        del request
        return [field.name for field in self.model._meta.fields]  # noqa: SLF001 - public, by its manual

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show the list, or why the database does not give it."""
        try:
            with transaction.atomic(using=router.db_for_read(self.model)):
                return super().changelist_view(request, extra_context)
        except DatabaseError as error:
            self.message_user(request, f"{error} Migrate, or GRANT SELECT on it to this role.", messages.ERROR)
            return redirect(f"{self.admin_site.name}:index")

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: the rows are the outbox's."""
        del request, obj
        return False

    has_change_permission = has_delete_permission = has_add_permission
