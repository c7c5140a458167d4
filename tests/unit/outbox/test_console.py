"""The console's pages: who sees them, what they show of what answers, and what they may decide."""

import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs
from typer.testing import CliRunner

from outbox._service.output import Entry
from outbox.errors import KafkaUnreachable
from outbox.operator import views
from outbox.operator.commands.console import app as command
from outbox.operator.console import app, pages
from outbox.operator.console.access import COOKIE, Access
from outbox.operator.console.actions import Plan, Verb
from outbox.operator.console.app import WebConsole
from outbox.operator.settings import DecisionSettings, OperatorSettings
from outbox.operator.state.channel_state import ChannelState, Condition, SourceState
from outbox.operator.state.discarded import DiscardedTransaction

HOSTILE = "<script>alert(1)</script> \x1b[2J"
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
PREVIEW = "/preview?verb=drop&service=orders&reason=TOO_LARGE"
BEN, EVE = {"X-Forwarded-User": "ben"}, {"X-Forwarded-User": "eve"}


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel with a source whose rows wait for a relay, and with dead letters; nothing is asked."""
    source = SourceState("shop", "t", condition=Condition.NO_OWNER, rows=2, age_ms=1_000)
    state = ChannelState("shop", 0, members={"relay": 0, "checker": None})
    dead = [DiscardedTransaction("id", "orders", "TOO_LARGE", HOSTILE, 1, 0)] * 3
    letters = SimpleNamespace(read=lambda: dead, unread=lambda: ["table source away"])
    monkeypatch.setattr(pages, "report_tables", lambda _: [source])
    monkeypatch.setattr(views, "overview", lambda *_, **__: state)
    monkeypatch.setattr(pages, "Discards", lambda _: letters)


def client(*, operator: bool = False, proxy: str = "", address: str = "10.0.0.9", key: str | None = None) -> TestClient:
    names: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:9", "channel": "shop"}
    access = Access(proxy, "anna")
    decides = DecisionSettings({}, **names) if operator else None
    served = WebConsole(OperatorSettings({}, **names), decides, access).app()
    made = TestClient(served, client=(address, 1), follow_redirects=False)
    if not proxy:
        assert made.get("/login?key=wrong").status_code == 403
        welcomed = made.get(f"/login?key={access.key}")
        assert (welcomed.status_code, welcomed.headers["location"]) == (303, "/")
        assert all(word in welcomed.headers["set-cookie"] for word in ("HttpOnly", "SameSite=lax"))
        if key is not None:
            made.cookies.clear()
            made.cookies.set(COOKIE, key)
    return made


@pytest.mark.parametrize("key", ["", "wrong"])
def test_without_the_key_nothing_is_shown(key: str) -> None:
    stranger = client(operator=True, key=key)
    for answer in (stranger.get("/"), stranger.get(PREVIEW), stranger.post("/decide")):
        assert (answer.status_code, "orders" in answer.text) == (403, False)


@pytest.mark.parametrize(
    ("address", "names", "status"),
    [
        ("10.0.0.9", ["ben"], 200),
        ("10.0.0.8", ["ben"], 403),
        ("10.0.0.9", [], 403),
        ("10.0.0.9", ["ben", "eve"], 403),
        ("10.0.0.9", ["User:ben"], 403),
    ],
)
def test_only_the_proxy_names_its_users(address: str, names: list[str], status: int) -> None:
    answer = client(proxy="10.0.0.9", address=address).get("/", headers=[("X-Forwarded-User", one) for one in names])
    assert (answer.status_code, "viewer ben" in answer.text) == (status, status == 200)


def test_the_first_screen_shows_what_waits_and_what_to_do() -> None:
    text = client().get("/").text
    for said in (
        "table source shop: no owner",
        "next step: start a relay with shop in its setting tables",
        "No unsettled transaction was found in channel shop.",
        "group shop-relay has no member: no relay runs",
        "checker: its group cannot be seen",
        "3 of orders  TOO_LARGE",
        "not read: table source away",
        "$ outbox pending --channel shop",
    ):
        assert said in text
    assert "preview" not in text, "a viewer decides nothing"
    assert PREVIEW.replace("&", "&amp;") in client(operator=True).get("/").text


def test_every_answer_forbids_scripts_and_escapes_what_records_hold() -> None:
    made = client()
    for path in ("/", "/console.css", "/find", "/story?id=x", "/login"):
        answer = made.get(path)
        assert answer.headers["content-security-policy"] == POLICY
        assert ("<script" in answer.text, "\x1b" in answer.text) == (False, False)
    assert "&lt;script&gt;alert(1)" in made.get("/").text


def test_who_does_not_answer_is_named_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    released, silent = threading.Event(), KafkaUnreachable("Kafka does not answer")
    monkeypatch.setattr(app, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(pages, "report_tables", lambda _: released.wait(30))
    monkeypatch.setattr(views, "overview", lambda *_, **__: ChannelState("shop", 0, silence=silent))
    try:
        text = client().get("/").text
    finally:
        released.set()
    assert "not read: Table sources: no answer within 0 s" in text
    assert "not read: Half mode: Kafka does not answer" in text
    assert "3 of orders" in text


@pytest.mark.parametrize(
    ("path", "why"),
    [
        *(("/find", "needs a key"), ("/story?id=x", "not a valid"), ("/find?key=a&since=b", "not a valid")),
        *(("/preview?verb=eat", "Choose one of"), ("/preview?verb=drop", "Name one transaction")),
    ],
)
def test_what_is_no_question_is_one_sentence(path: str, why: str) -> None:
    answer = client(operator=True).get(path)
    assert (answer.status_code, why in answer.text) == (400, True)


def test_without_its_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "Install kafka-transactional-outbox[console]" in CliRunner().invoke(command).output


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the reasons with which the only plan was carried out."""
    reasons: list[str] = []

    def make(reason: str) -> Sequence[Entry]:
        reasons.append(reason)
        return [Entry("2 of 2 have left")]

    fields = {"service": "orders", "reason": "TOO_LARGE"}
    monkeypatch.setattr(app, "plan", lambda *_: Plan(Verb.DROP, fields, "outbox …", 2, [Entry("2 messages")], make))
    return reasons


def _decide(browser: TestClient, token: str, reason: str = "why", **headers: Any) -> Any:
    return browser.post("/decide", data={"token": token, "reason": reason}, **headers)


def _token(browser: TestClient, **headers: Any) -> str:
    preview = browser.get(PREVIEW, **headers).text
    assert ("2 messages" in preview, "drop 2" in preview) == (True, True)
    return preview.partition('name="token" value="')[2].partition('"')[0]


def test_a_decision_has_a_preview_a_token_a_reason_and_a_line(made: list[str]) -> None:
    browser = client(operator=True)
    token = _token(browser)
    assert [_decide(browser, token, " ").status_code, _decide(browser, "forged").status_code, made] == [400, 403, []]
    with capture_logs() as lines:
        assert "2 of 2 have left" in _decide(browser, token, "nobody wants them").text
    assert [line["event"] for line in lines] == ["Operator decides", "Decision of an operator made"]
    logged = {"operator": "anna", "verb": "drop", "service": "orders", "transactions": 2, "why": "nobody wants them"}
    assert logged.items() <= lines[0].items()
    assert (_decide(browser, token).status_code, made) == (403, ["nobody wants them"])


def test_a_preview_is_of_who_has_seen_it(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(operator=True, proxy="10.0.0.9")
    token = _token(browser, headers=BEN)
    assert _decide(browser, token, headers=EVE).status_code == 403
    monkeypatch.setattr("outbox.operator.console.access.TOKEN_SECONDS", -1)
    assert _decide(browser, _token(browser, headers=BEN), headers=BEN).status_code == 403
    assert made == []
    assert (_decide(browser, token, headers=BEN).status_code, made) == (200, ["why"])


def test_a_viewer_decides_nothing(made: list[str]) -> None:
    browser = client()
    assert [browser.get(PREVIEW).status_code, _decide(browser, "x").status_code, made] == [403, 403, []]
