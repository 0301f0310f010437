"""A browser for tests: headless Chromium, driven by its DevTools protocol, as it needs no driver beside it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check"),
    *("--disable-gpu", "--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--disable-features=BackForwardCache", "--mute-audio", "--hide-scrollbars"),
    "--autoplay-policy=no-user-gesture-required",
)
MAX_WAIT_S = 30.0
"""Longest wait for anything; only a failure takes as long."""
POLL_S = 0.05


def find_browser() -> str | None:
    """Return the path of Chromium or a relative of it; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def open_page(url: str, folder: Path, flags: Sequence[str] = ()) -> Iterator[Page]:
    """Open a page in a new browser, with its profile and downloads in a folder, which is closed at the end."""
    program, profile = find_browser(), folder / "profile"
    assert program
    as_root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    command = [program, *FLAGS, *as_root, *flags, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with connect(_devtools_url(profile, process), max_size=None, compression=None) as socket:
            yield Page(socket, url, folder / "downloads")
    finally:
        if hasattr(os, "killpg"):  # with all its processes
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait(MAX_WAIT_S)


def _devtools_url(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address that the browser writes into its profile once it listens."""
    file, end_s = profile / "DevToolsActivePort", monotonic() + MAX_WAIT_S
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert process.poll() is None, "the browser has ended"
        assert monotonic() < end_s, "the browser does not listen"
        sleep(POLL_S)


class Page:
    """A page in a browser.

    Its problems are errors of its scripts, its console and its requests, and violations of its content security policy.
    """

    def __init__(self, socket: Connection, url: str, downloads: Path) -> None:
        self.problems: list[str] = []
        self.downloads = downloads
        self._socket, self._last_id, self._session = socket, 0, ""
        self._name, self._saved = "", list[str]()
        self._loaded = False
        downloads.mkdir(exist_ok=True)
        behaviour = {"behavior": "allow", "downloadPath": str(downloads), "eventsEnabled": True}
        self.call("Browser.setDownloadBehavior", **behaviour)
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")  # not its own ones
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits", "DOM"):
            self.call(f"{domain}.enable")
        self.open(url)

    def open(self, url: str) -> None:
        """Go to another address."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        self._wait_until(lambda: self._loaded, f"{url} is not loaded")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; what the page reports until it answers is noted."""
        id = self._send(method, params)
        while True:
            reply = json.loads(self._socket.recv(MAX_WAIT_S))
            if reply.get("id") == id:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
            self._note(reply.get("method", ""), reply.get("params", {}))

    def _send(self, method: str, params: dict[str, Any]) -> int:
        """Ask for a call of a method, and return its number."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        return self._last_id

    def run(self, script: str) -> Any:
        """Return the value of an expression, awaited, as if the user had asked for it."""
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        reply = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in reply, f"{script}: {reply['exceptionDetails']}"
        return reply["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        self._wait_until(lambda: self.run(f"Boolean({script})"), f"never true: {script}")

    def click(self, selector: str) -> None:
        """Click an element."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Give files to an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "ArrowDown": 40, "Enter": 13}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def download(self, selector: str) -> bytes:
        """Click an element, and return the file that the browser saves."""
        n_saved = len(self._saved)
        self.click(selector)
        self._wait_until(lambda: len(self._saved) > n_saved, f"{selector}: nothing was saved")
        return (self.downloads / self._saved[-1]).read_bytes()

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show it in another size, by day or by night."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _wait_until(self, holds: Callable[[], object], otherwise: str) -> None:
        end_s = monotonic() + MAX_WAIT_S
        while not holds():
            assert monotonic() < end_s, f"{otherwise}; problems: {self.problems}"
            self.call("Page.getFrameTree")  # takes in what has happened meanwhile
            sleep(POLL_S)

    def _note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded = True
            case "Page.javascriptDialogOpening":  # a recording that a failed test has left: it is let go
                self._send("Page.handleJavaScriptDialog", {"accept": True})
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Audits.issueAdded" if params["issue"]["code"] == "ContentSecurityPolicyIssue":
                self.problems.append(str(params["issue"]))
            case "Browser.downloadWillBegin":
                self._name = params["suggestedFilename"]
            case "Browser.downloadProgress" if params["state"] == "completed":
                self._saved.append(self._name)
