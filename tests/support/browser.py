"""A real browser, Chromium without a window, used by its keyboard alone: it is asked over a pipe, without a driver."""

import base64
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from outbox._jars.fetch import fetch

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
"""Of Debian: `apt-get install chromium`."""

TABS = 60
"""Presses of the tab key until something must have the focus."""

_SERIOUS = """axe.run({preload: false}).then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => `${one.id}: ${one.help}: ${one.nodes.map(node => node.html).join(" ")}`))"""

_NAME = "(e => (e.labels?.[0] ?? e).innerText.trim())(document.activeElement)"


@cache
def _axe() -> str:
    (jar,) = fetch(Path(__file__).with_name("axe.lock"))
    return ZipFile(jar).read("axe.min.js").decode()


class Browser:
    """One page; `violations` has what its security policy kept from it."""

    def __init__(self, to: int, answers: int, width: int, height: int) -> None:
        self._to, self._answers, self._rest, self._number = to, answers, b"", 0
        self._session: dict[str, str] = {}
        self.violations: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self._call("Page.enable")
        self._call("Log.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def _message(self) -> Any:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        entry = message.get("params", {}).get("entry", {})
        self.violations += [entry["text"]] if entry.get("source") == "security" else []
        return message

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            pass
        return answer["result"]

    def _await_page(self) -> None:
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def serious(self) -> list[str]:
        """What axe finds serious or critical on the page, in a world of its own, which no policy of the page binds."""
        frame = self._call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        world = {"contextId": self._call("Page.createIsolatedWorld", frameId=frame)["executionContextId"]}
        self._call("Runtime.evaluate", expression=_axe(), **world)
        found = self._call("Runtime.evaluate", expression=_SERIOUS, awaitPromise=True, returnByValue=True, **world)
        return list(found["result"]["value"])

    def open(self, address: str) -> None:
        self._call("Page.navigate", url=address)
        self._await_page()

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def _key(self, name: str, code: int, text: str = "") -> None:
        keys = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **keys)
        self._call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def type(self, name: str, text: str = "") -> None:
        """Go by tab to the next field, link or button with a name, and type something there."""
        for _ in range(TABS):
            self._key("Tab", 9)
            if self.run(_NAME) == name:
                break
        else:
            raise AssertionError(f"{name!r} cannot be reached by keyboard on this page:\n{self.text()}")
        if text:
            self._call("Input.insertText", text=text)

    def press(self, name: str = "") -> None:
        """Press a link or button by the enter key, without a name what has the focus; wait for the page."""
        if name:
            self.type(name)
        self._key("Enter", 13, "\r")
        self._await_page()

    def save(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path, width: int, height: int) -> Iterator[Browser]:
    (theirs, to), (answers, ours) = os.pipe(), os.pipe()
    words = (CHROMIUM, "--headless=new", "--no-sandbox", f"--user-data-dir={folder}", "--remote-debugging-pipe")
    command = f"exec {shlex.join(words)} 3<&{theirs} 4>&{ours} >{folder}.log 2>&1"
    with subprocess.Popen(["bash", "-c", command], pass_fds=(theirs, ours)):
        os.close(theirs)
        os.close(ours)
        try:
            yield Browser(to, answers, width, height)
        finally:
            os.close(to)  # it ends with its pipe
            os.close(answers)
