"""Headless Chromium, driven through its DevTools pipe. Whatever it does or does not do, nothing here waits longer than WAIT."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT = 30.0
"""Seconds that the browser has for one answer or one event."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)

# The browser wants its ends of the pipes as descriptors 3 and 4, and no other copy of them may stay open in a child of its.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for wanted, end in enumerate(ends, 3):
    os.dup2(end, wanted)
os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserGone(Exception):
    """The browser ended, or said nothing for WAIT seconds."""


class Page:
    """One tab. ``problems`` collects console errors, uncaught exceptions and everything else the browser logs."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.read = write, read
        self.buffer = b""
        self.count = 0
        self.session: str | None = None
        self.problems: list[str] = []
        self.loaded: set[str] = set()
        self.gone = ""
        self.path: Path | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self._send(json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []

        def answered(received: dict[str, Any]) -> bool:
            if received.get("id") == self.count:
                answers.append(received)
            return bool(answers)

        self._receive_until(answered, method)
        assert "error" not in answers[0], answers[0]
        return dict(answers[0]["result"])

    def _lost(self, why: str) -> BrowserGone:
        """No later call waits again for a browser that is lost."""
        self.gone = why
        return BrowserGone(why)

    def _send(self, data: bytes) -> None:
        if self.gone:
            raise BrowserGone(self.gone)
        deadline = time.monotonic() + WAIT
        while data:
            if not select.select([], [self.write], [], max(0.0, deadline - time.monotonic()))[1]:
                raise self._lost(f"chromium took no call for {WAIT:.0f} s")
            try:
                data = data[os.write(self.write, data) :]
            except BrokenPipeError:
                raise self._lost("chromium went away") from None

    def _receive_until(self, enough: Callable[[dict[str, Any]], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT
        while True:
            while b"\0" not in self.buffer:
                if not select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise self._lost(f"chromium did not answer within {WAIT:.0f} s: {what}")
                data = os.read(self.read, 1 << 20)
                if not data:
                    raise self._lost(f"chromium went away: {what}")
                self.buffer += data
            text, _, self.buffer = self.buffer.partition(b"\0")
            message: dict[str, Any] = json.loads(text)
            self._note(message.get("method"), message.get("params", {}))
            if enough(message):
                return

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            self.loaded.add(params["loaderId"])

    def open(self, path: Path, width: int = 1280, fragment: str = "") -> None:
        """Load a page anew. Its load event may come before the answer to the navigation, or after."""
        self.wide(width)
        self.path = path
        self.call("Page.navigate", url="about:blank")
        loader = self.call("Page.navigate", url=path.as_uri() + fragment)["loaderId"]
        if loader not in self.loaded:
            self._receive_until(lambda _: loader in self.loaded, f"the load of {path.name}")

    def wide(self, width: int) -> None:
        """The width of the window, in pixels."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def shows(self, expression: str, wanted: Any) -> None:
        """Assert a value that an event of the page may still be on its way to; a click's hashchange comes later than the click."""
        deadline = time.monotonic() + WAIT
        while (shown := self.value(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression}: {shown!r}, and not {wanted!r}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """A real click, by mouse, at the middle of the element."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def key(self, key: str) -> None:
        """A real key, pressed and let go: ``ArrowDown``, ``Enter``, ``/``, ``Tab``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
        codes |= {"ArrowRight": 39, "ArrowDown": 40, "PageDown": 34}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        more = {"text": text} if text else {}
        code = codes.get(key, ord(key[0]))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, selector: str, text: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data


@contextlib.contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A tab of a browser of its own, which is killed with all its processes at the end.

    Raises BrowserGone for one that does not start.
    """
    to_browser, our_write = os.pipe()
    our_read, from_browser = os.pipe()
    os.set_blocking(our_write, False)
    try:
        start = [sys.executable, "-ISc", _START, str(to_browser), str(from_browser)]
        process = subprocess.Popen(
            [*start, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser),
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(our_write, our_read)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT)
    finally:
        os.close(our_write)
        os.close(our_read)
