"""Settings of `audit`, with what derives from them."""

from outbox._settings.declared import CheckerDatabase
from outbox._settings.of_jobs import AuditFields
from outbox.errors import ConfigurationError
from spark_jobs.auditing.window import Window, last_window, parse_time


class AuditSettings(AuditFields):
    """Settings of `audit`."""

    def check(self) -> None:
        """Refuse a window with one end."""
        super().check()
        if bool(self.window_start) != bool(self.window_end):
            raise ValueError("one end of the window is missing. Give both --from and --to, or neither.")

    def window(self, now: int) -> Window:
        """Return the window.

        Args:
            now: ms since 1970.
        """
        if not self.window_start:
            return last_window(self.last, now, self.grace_ms)
        return Window(parse_time(self.window_start), parse_time(self.window_end), self.grace_ms)

    def all_databases(self) -> dict[str, CheckerDatabase]:
        if not (found := super().all_databases()):
            raise ConfigurationError(
                "No database is configured. Give OUTBOX_POSTGRES_URL or OUTBOX_POSTGRES_URL_FILE, "
                "or databases in the file of OUTBOX_CONFIG."
            )
        return found
