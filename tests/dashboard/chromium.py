"""A real browser, driven through its own protocol: start it, open pages, look at what they show.

Debian's package `chromium` is enough; the protocol is JSON over a web socket, so no further tool is
needed. Waiting is always for something the page shows, never for time to pass.
"""

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Of the protocol: what a screen is called to the page.
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PICTURE_MOST = 6000  # pixels high
_TRACED = "disabled-by-default-devtools.timeline"
_FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-sandbox",  # CI runs as root; the pages are our own
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-color-profile=srgb",
)


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Failed(AssertionError):
    pass


class Tab:
    """One page. `evaluate` runs an expression in it, which may be a promise."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self._size: dict[str, Any] = DESK
        self.messages: list[str] = []  # errors and warnings that the page logged
        self.requested: list[str] = []
        self._trace: list[dict[str, Any]] = []
        self._trace_ended = asyncio.Event()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise Failed(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    async def until(self, condition: str, *, seconds: float = 20.0) -> Any:
        """Looked at with every frame the page draws; what it was when it became true."""
        script = f"""new Promise((done, fail) => {{
            const end = performance.now() + {1000 * seconds};
            const look = () => {{
                let found; try {{ found = ({condition}); }} catch (error) {{ found = undefined; }}
                if (found) done(found);
                else if (performance.now() > end)
                    fail(new Error("never so; the page shows: " + document.body.innerText.slice(0, 600)));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        try:
            return await self.evaluate(script)
        except Failed as error:
            raise Failed(f"{condition}: {error}") from None

    async def traced(self, work: Awaitable[object]) -> list[dict[str, Any]]:
        """What the browser did meanwhile, in all its threads, as its own profiler has it."""
        self._trace.clear()
        self._trace_ended.clear()
        await self.call("Tracing.start", categories=_TRACED, transferMode="ReportEvents")
        await work
        await self.call("Tracing.end")
        await self._trace_ended.wait()
        return self._trace

    async def press(self, key: str, *, shift: bool = False) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "/": 191}[
            key
        ]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def screen(self, size: dict[str, Any], *, dark: bool = False) -> None:
        self._size = size
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self) -> bytes:
        """A PNG of the whole page, on a screen that is high enough: what is below the edge is not drawn."""
        for _ in range(2):  # the second time everything has its own height
            height = await self.evaluate("document.documentElement.scrollHeight")
            tall = self._size | {"height": max(self._size["height"], min(height, PICTURE_MOST))}
            await self.call("Emulation.setDeviceMetricsOverride", **tall)
            await self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
        answer = await self.call("Page.captureScreenshot", format="png")
        await self.call("Emulation.setDeviceMetricsOverride", **self._size)
        return base64.b64decode(answer["data"])

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.messages.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.messages.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.messages.append(str(parameters["args"]))
        elif method == "Tracing.dataCollected":
            self._trace += parameters["value"]
        elif method == "Tracing.tracingComplete":
            self._trace_ended.set()
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        return await answer

    async def read(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                answer = self._waiting.pop(content["id"])
                if "error" in content:
                    answer.set_exception(Failed(str(content["error"])))
                elif not answer.done():
                    answer.set_result(content["result"])
            elif (tab := self._tabs.get(content.get("sessionId", ""))) is not None:
                tab.heard(content["method"], content["params"])

    async def tab(self) -> Tab:
        """In a context of its own: no storage of others."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = (await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True))[
            "sessionId"
        ]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.call(f"{domain}.enable")
        return tab


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    path = executable()
    assert path is not None, "there is no chromium"
    with tempfile.TemporaryDirectory(prefix="karpool-chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            path,
            *_FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(await _address(process), max_msg_size=0) as socket,
            ):
                found = Browser(socket)
                reading = asyncio.create_task(found.read())
                try:
                    yield found
                    await found.call("Browser.close")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(10):
                            await process.wait()
                finally:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said: list[str] = []
    async with asyncio.timeout(30):
        async for line in process.stderr:
            text = line.decode(errors="replace").strip()
            said.append(text)
            if text.startswith("DevTools listening on "):
                return text.removeprefix("DevTools listening on ")
    raise Failed("chromium did not start: " + " | ".join(said[-5:]))
