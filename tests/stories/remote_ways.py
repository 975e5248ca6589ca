"""A story told through the web pages and through the Model Context Protocol.

Both are real servers, child processes of the test; steps of the run itself are the library's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from sequencer.testing import ScratchProject
from tests.forked import Forked, put_on_path
from tests.scratch_folders import scratch_folder
from tests.stories.story import Ended, Library

WEB_VERBS = frozenset(
    ("approve", "reject", "feedback", "answer", "tell", "stop", "pause", "resume", "retry")
)
MCP_VERBS = frozenset(("approve", "reject", "feedback", "answer"))


def environment(project: ScratchProject) -> dict[str, str]:
    """Return the environment of a server of *project*, which it trusts."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SEQUENCER_")}
    return {**kept, "SEQUENCER_TRUST": str(project.folder)}


class Forms(HTMLParser):
    """The forms of a page: their addresses and the values of their fields."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._is_open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and given.get("method") == "post":
            self.found.append((given["action"], {}))
            self._is_open = True
        elif tag == "input" and self._is_open and given.get("type") == "hidden":
            self.found[-1][1][given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        self._is_open = self._is_open and tag != "form"


class WebForm(Library):
    """A person's command is a form of the run's page, sent as a browser sends it."""

    def __enter__(self) -> Self:
        self._server = Forked(
            [sys.executable, "-m", "sequencer", "web", "--port", "0", "--no-browser"],
            cwd=self.project.folder,
            env=environment(self.project),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        link = self._server.stdout.readline().strip().replace("sequencer.localhost", "127.0.0.1")
        self._browser = build_opener(HTTPCookieProcessor(CookieJar()))
        self._origin = link.partition("/login")[0]
        self._page(link.removeprefix(self._origin))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.send_signal(signal.SIGTERM)
        self._server.communicate(timeout=30)

    def do(self, verb: str, values: Mapping[str, Any]) -> Ended:
        forms = Forms(self._page(self._address())).found
        address, hidden = next(found for found in forms if found[0].endswith(f"/do/{verb}"))
        text = values.get("text") or values.get("note") or values.get("reason") or ""
        words = {"text": text, **({"value": text} if verb == "answer" else {})}
        try:
            return Ended(0, self._page(address, {**hidden, **words}))
        except HTTPError as refused:
            return Ended(4, refused.read().decode())

    def _page(self, address: str, form: Mapping[str, str] | None = None) -> str:
        """Return the page at *address*, or the one that follows after sending *form* there."""
        data = None if form is None else urlencode(form).encode()
        headers = {"Origin": self._origin, "Sec-Fetch-Site": "same-origin"}
        asked = Request(f"{self._origin}{address}", data, {} if form is None else headers)  # noqa: S310
        with self._browser.open(asked, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def _address(self) -> str:
        """Return where the page of the run is, as the list of runs links it."""
        links = re.findall(r'href="(/p/[^"]+)"', self._page("/runs"))
        address: str = next(link for link in links if link.split("/")[3] == (self.run or "-"))
        return address


class McpClient(Library):
    """A decision is a call of the tool `answer`, by the official client."""

    def do(self, verb: str, values: Mapping[str, Any]) -> Ended:
        head = self.project.run(self.run).head
        assert head is not None
        questions = json.loads(self.project.run_command("inbox", "--json").stdout)
        token = next(one["token"] for one in questions)
        text = values.get("text") or values.get("note") or ""
        given = {"decision": verb, "token": token, "text": text, "run": self.run}
        if node := values.get("node"):
            given["node"] = node
        return asyncio.run(self._called({k: v for k, v in given.items() if v is not None}))

    async def _called(self, given: Mapping[str, Any]) -> Ended:
        with scratch_folder() as programs:
            variables = {**environment(self.project), **put_on_path(programs)}
            server = StdioServerParameters(
                command=str(programs / "sequencer"),
                args=["mcp"],
                cwd=self.project.folder,
                env=variables,
            )
            async with Client(server) as client:
                result = await client.call_tool("answer", dict(given))
        text = "".join(part.text for part in result.content if isinstance(part, TextContent))
        return Ended(4 if result.is_error else 0, text)
