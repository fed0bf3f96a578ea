"""A browser to open pages in: Chromium through its debugging pipe, nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--remote-debugging-pipe",
)
PATIENCE = 60  # seconds; a loaded machine starts a browser slowly
KEYS = {"Enter": (13, "\r"), "Tab": (9, "")}
# Chromium listens on file descriptor 3 and answers on 4; a shell cannot move those of two digits there, Python can.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


def find() -> str | None:
    """Where a Chromium is installed; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One tab of a headless browser. Every message it sends by itself is kept in ``events``."""

    def __init__(self, program: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._sent, self._unread, self._session = 0, b"", None
        hears, self._to = os.pipe()
        self._from, says = os.pipe()
        # Out of the way of 3 and 4, so that moving one there cannot close the other.
        ends = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (hears, says)]
        command = [sys.executable, "-c", START, *map(str, ends), program, *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            command, pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for each in (hears, says, *ends):
            os.close(each)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # the browser ends when nobody can command it any more
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        self._read_until(lambda: self._sent in self._answers, method)
        answer = self._answers.pop(self._sent)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self._read_until(lambda: any(each["method"] == "Page.loadEventFired" for each in self.events), url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click, in the middle of an element."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'center', inline: 'center'}})")
        box = self.run(f"{where}.getBoundingClientRect().toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for what in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A real key press, to whatever has the focus."""
        code, text = KEYS[key]
        for what in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=what, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def look(self, path: Path, width: int, scheme: str = "light") -> None:
        """A picture of the whole page at a width, in the system's light or dark scheme."""
        self.resize(width, scheme)
        height = self.run("document.documentElement.scrollHeight")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def resize(self, width: int, scheme: str = "light") -> None:
        """Show the page at a width, in the system's light or dark scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def _read_until(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            new = os.read(self._from, 1 << 16) if ready else b""
            assert new, f"Chromium {'ended' if ready else 'did not answer in time'} at {what}"
            *messages, self._unread = (self._unread + new).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append(message)
