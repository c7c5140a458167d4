"""The web application of the console: pages without a script, each of whose servers has a bound on time."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
import structlog
from jinja2 import Environment
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from outbox._security.redaction import redact, visible
from outbox._service.exit_codes import is_foreseen, reason_of
from outbox._service.output import Entry, utc
from outbox.errors import UsageError
from outbox.operator.console.access import COOKIE, Access, Tokens
from outbox.operator.console.actions import Plan, plan
from outbox.operator.console.pages import Page, Pages, Section
from outbox.operator.settings import DecisionSettings, OperatorSettings

ANSWER_SECONDS = 25.0  # time that the servers of a section have; the others of the page are shown all the same
MOST_QUESTIONS = 16  # questions to servers at a time
MOST_REASON = 500  # characters of a reason
MOST_BODY = 10_000  # bytes of a form
_TEMPLATE = Path(__file__).with_name("page.html.j2").read_text()
_STYLE = Path(__file__).with_name("console.css").read_text()

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

log = structlog.get_logger()
T = TypeVar("T")


class WebConsole:
    """The console of one channel; without `operator` nothing is decided here."""

    def __init__(self, viewer: OperatorSettings, operator: DecisionSettings | None, access: Access) -> None:
        self._viewer = viewer
        self._operator = operator
        self._access = access
        self._tokens = Tokens()
        self._questions = anyio.CapacityLimiter(MOST_QUESTIONS)
        text = lambda value: value if isinstance(value, Markup) else visible(str(value))  # noqa: E731 - of a template
        environment = Environment(autoescape=True, finalize=text, trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(_TEMPLATE)

    def app(self) -> Starlette:
        pages = Pages(self._viewer, can_act=self._operator is not None)
        routes = [
            Route("/", partial(self._show, make=pages.overview)),
            Route("/find", partial(self._show, make=pages.find)),
            Route("/story", partial(self._show, make=pages.story)),
            Route("/preview", self._preview),
            Route("/decide", self._decide, methods=["POST"]),
            Route("/login", self._login),
            Route("/console.css", lambda _: Response(_STYLE, media_type="text/css", headers=_HEADERS)),
        ]
        return Starlette(routes=routes)

    async def _login(self, request: Request) -> Response:
        if not self._access.is_key(request.query_params.get("key", "")):
            return self._refuse()
        answer = RedirectResponse("/", 303, _HEADERS)
        answer.set_cookie(COOKIE, self._access.key, httponly=True, samesite="lax")
        return answer

    def _refuse(self) -> Response:
        why = "Open the address with the key that `outbox console` printed, or come through its proxy."
        return self._note(None, "Who are you?", why, 403)

    async def _show(self, request: Request, make: Callable[[Mapping[str, str]], Page]) -> Response:
        user = self._access.user(request)
        if user is None:
            return self._refuse()
        try:
            page = make(request.query_params)
        except UsageError as error:
            return self._note(user, "That is not a question", str(error), 400)
        shown: list[list[Entry]] = [[] for _ in page.sections]
        async with anyio.create_task_group() as tasks:
            for section, items in zip(page.sections, shown, strict=True):
                tasks.start_soon(self._fill, section, items)
        return self._render(user, page, shown)

    async def _fill(self, section: Section, shown: list[Entry]) -> None:
        try:
            shown += await self._ask(lambda: list(section.items()))
        except Exception as error:  # noqa: BLE001 - the rest of the page is shown
            shown.append(Entry(f"not read: {section.title}: {_sentence(error)}"))

    async def _ask(self, work: Callable[[], T]) -> T:
        """Run what blocks in a thread; one that does not end is left behind, and counts until it ends."""
        with anyio.fail_after(ANSWER_SECONDS):
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._questions)

    async def _preview(self, request: Request) -> Response:
        user, operator, given = self._access.user(request), self._operator, request.query_params
        if user is None or operator is None:
            return self._refuse()
        try:
            found = await self._ask(lambda: plan(operator, user, given))
        except Exception as error:  # noqa: BLE001 - shown as a sentence
            return self._note(user, "Nothing is decided", _sentence(error), 400)
        token = self._tokens.issue(user, found) if found.count else ""
        page = Page(f"Preview: {found.verb}", found.command)
        return self._render(user, page, [found.entries], plan=found, token=token)

    async def _decide(self, request: Request) -> Response:
        user = self._access.user(request)
        if user is None or self._operator is None:
            return self._refuse()
        given = dict(parse_qsl((await _body(request)).decode(errors="replace")))
        reason = given.get("reason", "").strip()
        if not 0 < len(reason) <= MOST_REASON:
            why = f"The reason has {len(reason)} characters: give 1 to {MOST_REASON}. Go back to the preview."
            return self._note(user, "Nothing is decided", why, 400)
        found = self._tokens.take(user, given.get("token", ""))
        if found is None:
            why = "This preview was decided on, is too old, or is another user's. Open it again."
            return self._note(user, "Nothing is decided", why, 403)
        audit = log.bind(operator=user, why=reason, verb=str(found.verb), transactions=found.count, **found.fields)
        audit.info("Operator decides")
        try:
            entries = await anyio.to_thread.run_sync(found.make, reason, limiter=self._questions)
        except Exception as error:  # noqa: BLE001 - shown as a sentence
            audit.warning("Decision of an operator failed", error=_sentence(error))
            return self._note(user, "It failed", _sentence(error), 502)
        audit.info("Decision of an operator made")
        return self._render(user, Page(f"Result: {found.verb}", found.command), [entries])

    def _note(self, user: str | None, title: str, sentence: str, status: int) -> Response:
        return self._render(user, Page(title), [[Entry(sentence)]], status)

    def _render(
        self, user: str | None, page: Page, shown: Sequence[Sequence[Entry]], status: int = 200, **more: Plan | str
    ) -> Response:
        """Show a page; `more` are the plan and its token."""
        titles = [section.title for section in page.sections] or [""]
        more |= {"channel": self._viewer.channel, "now": utc(time.time_ns() // 1_000_000)}
        sections, can_act = list(zip(titles, shown, strict=True)), self._operator is not None
        content = self._template.render(page=page, sections=sections, user=user, can_act=can_act, **more)
        return HTMLResponse(content, status, _HEADERS)


async def _body(request: Request) -> bytes:
    """Return the beginning of a body: the form is small."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            break
    return body


def _sentence(error: Exception) -> str:
    """Return an error as a sentence; one that is not foreseen leaves its traceback in the log."""
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:.0f} s"
    if not is_foreseen(error):
        log.error("Unforeseen error of the console", exc_info=error)
    return redact(reason_of(error))
