"""A real browser for tests: Chromium, driven over a pipe by the protocol of its developer tools.

No package is needed: Chromium comes from the system, and the protocol is JSON over two pipes. A page records each
console error, exception and request to another host.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHY_NOT = "there is no Chromium on this machine (Debian: apt-get install chromium)"

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "--lang=en-US"),
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider",
)

JSON = dict[str, Any]

KEYS = {
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""), "ArrowLeft": ("ArrowLeft", 37, ""), "Escape": ("Escape", 27, ""),
}  # fmt: skip


class BrowserError(Exception):
    """The browser refused a command, or a script failed."""


class Browser:
    """A running browser, started by `browser`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[JSON]] = {}
        self._pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Read the browser's messages until it ends."""
        while True:
            try:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                self._answered(message)
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.told(message["method"], message["params"])

    def _answered(self, message: JSON) -> None:
        future = self._waiting.pop(message["id"], None)
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(BrowserError(json.dumps(message["error"])))
        else:
            future.set_result(message["result"])

    async def call(self, method: str, session: str | None = None, **params: Any) -> JSON:
        """Send a command to the browser."""
        self._number += 1
        message: JSON = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        return await asyncio.wait_for(future, 40)

    async def page(self, *, width: int = 1280, height: int = 860, phone: bool = False, dark: bool = False) -> Page:
        """Open a page in a context of its own, with its own cookies."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        return page


AT_REST = """(() => {
    const element = document.querySelector(SELECTOR), seen = window.lastSeen;
    if (!element || element.disabled) return null;
    element.scrollIntoView({block: 'center'});
    const line = element.getClientRects()[0];
    if (!line?.width) return null;
    const x = line.x + line.width / 2, y = line.y + line.height / 2;
    const rests = seen?.element === element && seen.x === x && seen.y === y;
    if (rests) return performance.now() - seen.since > 100 && {x, y};
    window.lastSeen = {element, x, y, since: performance.now()};
    return null;
})()"""
"""The middle of an element's first line, when it has not moved for a tenth of a second. Rows move when a table is
loaded again, and between two lines of a link there may be nothing to click.
"""


class Page:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        """The console errors and uncaught exceptions."""
        self.requests: list[str] = []
        """The URLs of its requests."""

    async def call(self, method: str, **params: Any) -> JSON:
        return await self._browser.call(method, self._session, **params)

    def told(self, method: str, params: JSON) -> None:
        """Record an event of the page."""
        match method:
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:1000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"])[:1000])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.errors.append(f"a dialog: {params['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise.

        Raises:
            BrowserError: The expression raised an exception.
        """
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 20.0) -> Any:
        """The value of an expression as soon as it is true. It is evaluated after each change of the page.

        Raises:
            BrowserError: It was not true in time. The message contains the page's text.
        """
        script = """new Promise((resolve) => {
            const look = () => { try { return EXPRESSION; } catch { return false; } };
            const end = (value) => {
                watch.disconnect(); clearInterval(again); clearTimeout(over);
                resolve(value instanceof Node ? true : value);
            };
            const check = () => { const value = look(); if (value) end(value); };
            const watch = new MutationObserver(check);
            watch.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
            const again = setInterval(check, 50);
            const over = setTimeout(() => end(null), MILLISECONDS);
            check();
        })""".replace("EXPRESSION", f"({expression})").replace("MILLISECONDS", str(int(seconds * 1000)))
        found = await self.run(script)
        if not found:
            stands = await self.run("document.body && document.body.innerText.slice(0, 1500)")
            raise BrowserError(f"never true: {expression}\n{self.errors}\n{stands}")
        return found

    async def text(self, selector: str = "main") -> str:
        """The visible text of an element."""
        found = await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    async def click(self, selector: str) -> None:
        """Click in the middle of an element when it has stopped moving, as a user does."""
        place = await self.until(AT_REST.replace("SELECTOR", json.dumps(selector)))
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key, as a keyboard does."""
        code, number, text = KEYS.get(
            key, (f"Key{key.upper()}" if key.isalpha() else f"Digit{key}", ord(key.upper()[0]), key)
        )
        fields: JSON = {"key": key if len(key) > 1 and key != "Space" else text or key, "code": code}
        fields |= {"windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Take a picture of the visible part or of the whole page."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await anyio.Path(path).write_bytes(base64.b64decode(shot["data"]))

    async def heap(self) -> int:
        """The bytes of the page's JavaScript objects, after a collection."""
        await self.call("HeapProfiler.collectGarbage")
        return int((await self.call("Runtime.getHeapUsage"))["usedSize"])

    def strangers(self, host: str) -> list[str]:
        """The requests to other hosts."""
        own = (f"http://{host}", "about:", "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a browser with an empty profile within a block."""
    assert CHROMIUM is not None, WHY_NOT
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process, from_read, to_write = _started(profile)
        try:
            async with _connected(from_read, to_write) as found:
                yield found
        finally:
            await asyncio.to_thread(_end, process)


def _started(profile: str) -> tuple[int, int, int]:
    """Start the browser. Returns its process and our ends of its two pipes, which are its descriptors 3 and 4."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (to_read, from_write)]
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, high[0], 3),
        (os.POSIX_SPAWN_DUP2, high[1], 4),
    ]
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
    process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    for each in (to_read, from_write, *high):
        os.close(each)
    return process, from_read, to_write


def _end(process: int) -> None:
    """Wait for the browser's end, and kill it if necessary."""
    for help_along in (0, signal.SIGTERM, signal.SIGKILL):
        os.kill(process, help_along)
        for _ in range(100):
            if os.waitpid(process, os.WNOHANG)[0]:
                return
            time.sleep(0.05)


@contextlib.asynccontextmanager
async def _connected(from_read: int, to_write: int) -> AsyncIterator[Browser]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=256 * 1024 * 1024)
    source, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_read, "rb", buffering=0)
    )
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(to_write, "wb", buffering=0))
    found = Browser(reader, writer)
    listening = asyncio.create_task(found.listen())
    try:
        yield found
    finally:
        with contextlib.suppress(BrowserError, TimeoutError):
            await asyncio.wait_for(found.call("Browser.close"), 3)
        writer.close()
        source.close()
        listening.cancel()
