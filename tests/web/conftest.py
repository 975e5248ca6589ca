"""Projects with runs in every state, the pages over them, and a client that sends what it likes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sequencer import InvocationLimits, open_project
from sequencer.cli.views.text import one_line
from sequencer.plugins.web.guard import Keys, PageGuard, list_origins
from sequencer.plugins.web.server import make_app
from sequencer.plugins.web.site import Site
from tests.web.deliveries import Taker, make_project, taking
from tests.web.sample import make_all

PORT = 8420
HOST = f"127.0.0.1:{PORT}"
MOVED = """
workflow: {name: standard}
agent: {default: scribe}
agents:
  scribe:
    kind: command
    argv: [sh, -c, 'date +%N >> notes.md; echo "<b>+ $SEQUENCER_STEP</b>" >> notes.md']
    free: true
store: {kind: git}
commit: {paths: [notes.md]}
"""
LINK = "a token of the link that is long enough"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def words(page: str) -> str:
    """Return the text of *page* in one line."""
    reader = _Text()
    reader.feed(page.partition("<main")[2])
    return one_line(" ".join(reader.said))


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self) -> str:
        return self.body.decode()

    def header(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key == name)


class Client:
    """Asks an application, with exactly the headers that a test names."""

    def __init__(self, projects: list[Path], names: tuple[str, ...] = ()) -> None:
        self.projects = projects
        self.site = Site(projects)
        self.keys = Keys(LINK)
        app = make_app(self.site, self.keys.form)
        self.routes = app.routes
        self.guard = PageGuard(app, self.keys, list_origins("127.0.0.1", PORT, names), PORT)

    def headers(self, **changed: str | None) -> list[tuple[str, str]]:
        """Return the headers of a browser on our pages; None leaves one out."""
        found: dict[str, str | None] = {
            "host": HOST,
            "cookie": f"{self.guard.cookie}={self.keys.session}",
            **{name.replace("_", "-"): value for name, value in changed.items()},
        }
        return [(name, value) for name, value in found.items() if value is not None]

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: list[tuple[str, str]] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Send one request."""
        return asyncio.run(self._ask(path, method, headers or self.headers(), body))

    def get(self, path: str, **changed: str | None) -> Answer:
        return self.ask(path, headers=self.headers(**changed))

    def post(
        self, path: str, form: Mapping[str, object] | None = None, **changed: str | None
    ) -> Answer:
        """Send a form as our pages do."""
        fields = {"form_token": self.keys.form, **(form or {})}
        origin = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin", **changed}
        body = urlencode({key: value for key, value in fields.items() if value is not None})
        return self.ask(path, "POST", self.headers(**origin), body.encode())

    async def _ask(
        self, path: str, method: str, headers: list[tuple[str, str]], body: bytes
    ) -> Answer:
        sent: list[dict[str, object]] = []
        asked = asyncio.Event()

        async def receive() -> dict[str, object]:
            if asked.is_set():
                await asyncio.sleep(60)
            asked.set()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            sent.append(message)

        scope = scope_of(path, method, headers)
        await self.guard(scope, receive, send)
        start = sent[0]
        found = start["headers"]
        assert isinstance(found, list)
        assert isinstance(start["status"], int)
        parts = [part for message in sent[1:] if isinstance(part := message.get("body"), bytes)]
        text = [(key.decode(), value.decode()) for key, value in found]
        return Answer(start["status"], text, b"".join(parts))


def scope_of(path: str, method: str, headers: list[tuple[str, str]]) -> dict[str, object]:
    bare, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": bare,
        "raw_path": bare.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        # Of another machine: no process here has that end.
        "client": ("192.0.2.7", 50000),
        "server": ("127.0.0.1", PORT),
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the sample projects, which nobody changes."""
    folder = tmp_path_factory.mktemp("sample")
    make_all(folder)
    return folder


@pytest.fixture(scope="session")
def looking(made: Path) -> Iterator[Client]:
    """Return a client of pages over the sample, to look only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQUENCER_TRUST", "all")
        yield Client([made / "shop", made / "docs"])


@pytest.fixture
def client(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of pages over a copy of the sample, which is trusted."""
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    monkeypatch.delenv("SEQUENCER_TOKEN", raising=False)
    folders = [tmp_path / "shop", tmp_path / "docs"]
    for folder in folders:
        shutil.copytree(made / folder.name, folder)
    return Client(folders)


@pytest.fixture
def untrusted(client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of pages over projects that nobody has trusted."""
    monkeypatch.delenv("SEQUENCER_TRUST")
    return client


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose code moves with its run, through a remote on this machine."""
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    folder = tmp_path / "moved"
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do the part of {name}.\n")
    (folder / "orchestration.yaml").write_text(MOVED)
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A project")
    git(tmp_path, "clone", "-q", "--bare", str(folder), "shared.git")
    git(folder, "remote", "add", "origin", "../shared.git")
    open_project(folder, trust=True).run(None).work(limits=InvocationLimits(max_steps=3))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a project that takes deliveries."""
    return make_project(tmp_path / "app")


@pytest.fixture
def taker(folder: Path, tmp_path: Path) -> Iterator[Taker]:
    """Return a server that takes them."""
    with taking(folder, tmp_path / "state") as found:
        yield found
