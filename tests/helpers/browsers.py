"""Drive Chromium and Firefox without a window, by the protocols that they speak themselves.

Chromium speaks its DevTools protocol and Firefox WebDriver BiDi, both as JSON over a WebSocket: the few calls
that the tests of pages need are here, without a driver to install.
"""

import base64
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

Name = Literal["chromium", "firefox"]
PROGRAMS: dict[Name, tuple[str, ...]] = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "firefox": ("firefox", "firefox-esr"),
}
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-unsafe-swiftshader")
"""Options of Chromium for WebGPU without a graphics processor."""
WAIT = 120.0
"""Seconds for an answer of a browser, on a machine under load."""


def find_browser(name: Name) -> str | None:
    """Return the path of an installed browser."""
    return next(filter(None, map(shutil.which, PROGRAMS[name])), None)


class Socket:
    """The client's end of a WebSocket (RFC 6455) on this machine, for texts alone."""

    def __init__(self, address: str) -> None:
        match = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", address)
        assert match is not None, address
        self.socket = socket.create_connection((match[1], int(match[2])), WAIT)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {match[3]} HTTP/1.1", f"Host: {match[1]}:{match[2]}", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.stream = self.socket.makefile("rb")
        assert b" 101 " in self.stream.readline()
        while self.stream.readline().strip():
            pass

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = bytes([0x81, 0x80 | size])
        elif size < 1 << 16:
            head = b"\x81\xfe" + size.to_bytes(2, "big")
        else:
            head = b"\x81\xff" + size.to_bytes(8, "big")
        self.socket.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self) -> str:
        parts = b""
        while True:
            first, second = self.stream.read(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            data = self.stream.read(size)
            if first & 0x0F <= 2:  # text, or its continuation; pings need no answer on this machine
                parts += data
                if first & 0x80:
                    return parts.decode()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Browser:
    """A browser with one page.

    Args:
        name: which browser.
        more: further options of the browser.
    """

    def __init__(self, name: Name, more: Sequence[str] = ()) -> None:
        program = find_browser(name)
        assert program is not None
        self.name, self.numbers = name, itertools.count(1)
        self.requests: list[str] = []
        """The addresses of all requests, of the page and of its worker."""
        self.messages: list[str] = []
        """The lines of the console."""
        self.folder = Path(tempfile.mkdtemp(prefix="vitkit-browser-"))
        options = {
            "chromium": ["--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={self.folder}"],
            "firefox": ["--headless", "--no-remote", "--profile", str(self.folder)],
        }[name]
        options += ["--remote-debugging-port=0", *more]
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            command = [program, *options, "about:blank"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        address = self._address()
        self.socket = Socket(address if name == "chromium" else f"{address}/session")
        self.session: str | None = None  # Chromium's, of the page
        if name == "chromium":
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Network", "Runtime", "Page", "Log"):
                self.call(f"{domain}.enable")
            # Workers wait until their requests are seen too.
            self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        else:
            self.call("session.new", capabilities={})
            self.call("session.subscribe", events=["network.beforeRequestSent", "log.entryAdded"])
            self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def _address(self) -> str:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            match = re.search(r"listening on (ws://\S+)", self.log.read_text(errors="replace"))
            if match is not None:
                return match[1]
            time.sleep(0.05)
        raise AssertionError(self.log.read_text(errors="replace"))

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the browser's protocol, and return its result."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(answer)
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        """Write down a request or a message; let a worker begin."""
        method, parameters = event.get("method"), event.get("params", {})
        if method in ("Network.requestWillBeSent", "network.beforeRequestSent"):
            self.requests.append(parameters["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Log.entryAdded", "log.entryAdded"):
            self.messages.append(json.dumps(parameters.get("entry", parameters))[:2000])
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(parameters)[:2000])
        elif method == "Target.attachedToTarget":
            for order in ("Network.enable", "Runtime.enable", "Runtime.runIfWaitingForDebugger"):
                of_worker = {"sessionId": parameters["sessionId"]}
                self.socket.send(json.dumps({"id": next(self.numbers), "method": order, **of_worker}))

    def open(self, address: str) -> None:
        if self.name == "chromium":
            self.call("Page.navigate", url=address)
        else:
            self.call("browsingContext.navigate", context=self.context, url=address, wait="interactive")

    def evaluate(self, expression: str) -> Any:
        """Evaluate an expression in the page, and return its value; a promise is waited for."""
        whole = f"(async () => JSON.stringify(await ({expression})))()"
        if self.name == "chromium":
            result = self.call("Runtime.evaluate", expression=whole, awaitPromise=True, returnByValue=True)
        else:
            target = {"context": self.context}
            result = self.call("script.evaluate", expression=whole, target=target, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        text = result["result"].get("value")
        return None if text is None else json.loads(text)

    def wait_for(self, expression: str, seconds: float = WAIT) -> Any:
        """Wait until an expression has a true value, and return it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        raise AssertionError(f"{expression} is not true after {seconds:.0f} s; {self.messages[-5:]}")

    def set_files(self, identifier: str, paths: Sequence[Path]) -> None:
        """Choose files in the input of an id."""
        files = [str(path.resolve()) for path in paths]
        expression = f"document.getElementById('{identifier}')"
        if self.name == "chromium":
            node = self.call("Runtime.evaluate", expression=expression)["result"]["objectId"]
            self.call("DOM.setFileInputFiles", files=files, objectId=node)
        else:
            target = {"context": self.context}
            node = self.call("script.evaluate", expression=expression, target=target, awaitPromise=False)
            shared = {"sharedId": node["result"]["sharedId"]}
            self.call("input.setFiles", context=self.context, element=shared, files=files)

    def press(self, key: str) -> None:
        """Press and release a key: Tab or Enter."""
        if self.name == "chromium":
            text, code = {"Enter": ("\r", 13), "Tab": ("", 9)}[key]
            event: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)
        else:
            value = {"Enter": "\ue007", "Tab": "\ue004"}[key]
            keys = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
            source = {"type": "key", "id": "keyboard", "actions": keys}
            self.call("input.performActions", context=self.context, actions=[source])

    def resize(self, width: int, height: int) -> None:
        if self.name == "chromium":
            sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            self.call("Emulation.setDeviceMetricsOverride", **sizes)
        else:
            viewport = {"width": width, "height": height}
            self.call("browsingContext.setViewport", context=self.context, viewport=viewport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
