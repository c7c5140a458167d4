"""The app's configuration."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """`outbox.django` in INSTALLED_APPS."""

    name = "outbox.django"
    label = "outbox"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from outbox.django import system_checks  # noqa: F401, PLC0415 - it needs the app registry
