"""Chromium without a window, by the pipe of its DevTools protocol: pages are opened, asked, and drawn."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PATIENCE = 60
"""Seconds for a page to become what is waited for."""
_TEXT = "document.body && document.body.innerText"
_OPTIONS = (
    *("--headless", "--no-sandbox", "--remote-debugging-pipe"),
    *("--hide-scrollbars", "--no-first-run", "--no-proxy-server"),
    # Pages are files, and read others; speedscope draws with WebGL.
    *("--allow-file-access-from-files", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)


class Refused(Exception):
    """The browser does not do it; the text says why."""


@dataclass
class Browser:
    """A Chromium that runs."""

    _to: IO[bytes]
    _from: IO[bytes]
    _last: int = 0

    def open(self, url: str, width: int, height: int) -> Page:
        """Open a page in place of the one before: what is not in front is not drawn."""
        target = self.ask("Target.createTarget", url=url)["targetId"]
        for other in self.ask("Target.getTargets")["targetInfos"]:
            if other["type"] == "page" and other["targetId"] != target:
                self.ask("Target.closeTarget", targetId=other["targetId"])
        page = Page(self, self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        return page

    def ask(self, method: str, session: str = "", **parameters: object) -> Any:
        """Return the result of a command. Raises Refused."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        self._to.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self._to.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise Refused(answer["error"]["message"])
                return answer["result"]

    def _read(self) -> bytes:
        found = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "the browser has ended"
            found += byte
        return bytes(found)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a browser."""

    browser: Browser
    session: str

    def ask(self, method: str, **parameters: object) -> Any:
        return self.browser.ask(method, self.session, **parameters)

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript's once it is true. Fails where it never is."""
        asked = f"(() => {{ try {{ return {expression} }} catch (error) {{}} }})()"
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(Refused):  # while one page gives way to the next, there is none
                if found := self.value(asked):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"nothing came of {expression}; there is {self.value(_TEXT)!r}")

    def value(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settled(self) -> bytes:
        """Return what is seen once nothing moves, as a PNG."""
        last = b""
        while (seen := base64.b64decode(self.ask("Page.captureScreenshot")["data"])) != last:
            last = seen
            time.sleep(0.5)
        return seen


def chromium() -> str:
    """Return the program. Raises FileNotFoundError."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise FileNotFoundError("no browser: install chromium")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    commands, into = os.pipe()
    answers, out = os.pipe()
    # Chromium reads from 3 and writes to 4.
    shell = ("bash", "-c", f'exec "$@" 3<&{commands} 4>&{out}', "bash")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = (*shell, chromium(), *_OPTIONS, f"--user-data-dir={Path(folder) / 'profile'}")
        quiet = subprocess.DEVNULL
        # It waits for answers of a bus, where one is named.
        environment = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": "disabled:", "DBUS_SYSTEM_BUS_ADDRESS": "disabled:"}
        process = subprocess.Popen(words, pass_fds=(commands, out), stdin=quiet, stderr=quiet, env=environment)
        os.close(commands)
        os.close(out)
        try:
            with os.fdopen(into, "wb") as to, os.fdopen(answers, "rb") as back:
                yield Browser(to, back)
        finally:
            process.terminate()
            process.wait(20)
