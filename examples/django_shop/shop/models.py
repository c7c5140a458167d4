"""What the shop stores."""

from django.db import models


class Order(models.Model):  # type: ignore[misc]  # Django has no types
    """An order."""

    what = models.TextField()

    class Meta:  # noqa: D106 - of Django
        app_label = "shop"

    def __str__(self) -> str:
        """Return what was ordered."""
        return str(self.what)
