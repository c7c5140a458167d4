"""Who uses the console: names from a trusted proxy or a login, and tokens without which nothing is decided."""

import re
import secrets
import time

from starlette.requests import Request

from outbox.operator.console.actions import Plan

COOKIE = "outbox-console"
HEADER = "x-forwarded-user"
TOKEN_SECONDS = 900  # how long a preview may be decided on
MOST_TOKENS = 1_000
_NAME = re.compile(r"[^:()\x00-\x1f\x7f]{1,100}")  # as the setting `operator` is


class Access:
    """Names of users: by the header of a proxy with this address, else `name`, for who logs in with the key."""

    def __init__(self, proxy: str, name: str) -> None:
        self._proxy = proxy
        self._name = name
        self.key = secrets.token_urlsafe(24)

    def is_key(self, given: str) -> bool:
        return not self._proxy and secrets.compare_digest(given.encode(), self.key.encode())

    def user(self, request: Request) -> str | None:
        if not self._proxy:
            return self._name if self.is_key(request.cookies.get(COOKIE, "")) else None
        names = request.headers.getlist(HEADER)
        is_trusted = request.client is not None and request.client.host == self._proxy
        return names[0] if is_trusted and len(names) == 1 and _NAME.fullmatch(names[0]) else None


class Tokens:
    """Plans that were shown: each may be carried out once, by who has seen it."""

    def __init__(self) -> None:
        self._issued: dict[str, tuple[str, float, Plan]] = {}  # with user, and until when

    def issue(self, user: str, plan: Plan) -> str:
        """Return the token of a plan; the oldest one of very many is forgotten."""
        while len(self._issued) >= MOST_TOKENS:
            del self._issued[next(iter(self._issued))]
        token = secrets.token_urlsafe(24)
        self._issued[token] = (user, time.monotonic() + TOKEN_SECONDS, plan)
        return token

    def take(self, user: str, token: str) -> Plan | None:
        """Return the plan of a token, which has no meaning afterwards; None: it is not the user's, or too old."""
        if token not in self._issued or self._issued[token][0] != user:
            return None
        _, until, plan = self._issued.pop(token)
        return plan if time.monotonic() < until else None
