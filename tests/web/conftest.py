"""Projects with runs in every state, the pages over them, and a client that sends what it likes."""

from __future__ import annotations

import functools
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, urlencode

import pytest

from sequencer import InvocationLimits, Run, open_project
from tests.forked import Forked
from tests.loopback import free_ports
from tests.web.deliveries import Taker, make_project, taking
from tests.web.sample import make_all

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
    return " ".join(" ".join(reader.said).split())


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
    """Asks a server of the pages, with exactly the headers that a test names."""

    def __init__(self, projects: list[Path], names: tuple[str, ...] = (), **variables: str) -> None:
        """Serve *projects*, under the further *names*, in the environment and *variables*."""
        self.projects = projects
        self.port = free_ports(1)[0] if names else 0
        environment = {**os.environ, **variables}
        environment.pop("SEQUENCER_TOKEN", None)
        with tempfile.NamedTemporaryFile("w") as key:
            key.write(LINK)
            key.flush()
            options = ["--port", str(self.port), "--token-file", key.name, "--no-browser"]
            options += [word for name in names for word in ("--name", name)]
            self._process = Forked(
                [sys.executable, "-m", "sequencer", "web", *map(str, projects), *options],
                cwd=projects[0],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert self._process.stdout is not None
            link = self._process.stdout.readline()
        assert "/login?token=" in link
        self.port = self.port or int(link.partition("/login")[0].rpartition(":")[2])
        self.host = f"127.0.0.1:{self.port}"
        login = self.ask(f"/login?token={LINK}", headers=[("host", self.host)])
        self.cookie, _, rest = login.header("set-cookie").partition("=")
        self.session = rest.partition(";")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @functools.cached_property
    def form(self) -> str:
        """The token of the forms, from the first page that has one."""
        runs = re.findall(r'href="(/p/[^"/]+/[^"/]+)"', self.get("/runs").text)
        for page in ("/", *runs):
            if found := re.search(r'name="form_token" value="([^"]+)"', self.get(page).text):
                return found[1]
        raise AssertionError("no page has a form")

    def headers(self, **changed: str | None) -> list[tuple[str, str]]:
        """Return the headers of a browser on our pages; None leaves one out."""
        found: dict[str, str | None] = {
            "host": self.host,
            "cookie": f"{self.cookie}={self.session}",
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
        with self.sent(path, method, headers, body) as answer:
            named = [(name.lower(), value) for name, value in answer.getheaders()]
            return Answer(answer.status, named, answer.read())

    @contextmanager
    def sent(
        self,
        path: str,
        method: str = "GET",
        headers: list[tuple[str, str]] | None = None,
        body: bytes = b"",
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request, and yield the answer as it comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        # As a browser does it with what can't be in an address.
        address = re.sub(r"[^\x21-\x7e]", lambda odd: quote(odd[0]), path)
        with closing(connection):
            connection.putrequest(method, address, skip_host=True, skip_accept_encoding=True)
            for name, value in headers or self.headers():
                connection.putheader(name, value)
            if body or method == "POST":
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body or None)
            yield connection.getresponse()

    def get(self, path: str, **changed: str | None) -> Answer:
        return self.ask(path, headers=self.headers(**changed))

    def post(
        self, path: str, form: Mapping[str, object] | None = None, **changed: str | None
    ) -> Answer:
        """Send a form as our pages do."""
        fields = {"form_token": self.form, **(form or {})}
        origin = {"origin": f"http://{self.host}", "sec_fetch_site": "same-origin", **changed}
        body = urlencode({key: value for key, value in fields.items() if value is not None})
        return self.ask(path, "POST", self.headers(**origin), body.encode())

    def url(self, name: str) -> str:
        """Return the address of the page of the run called *name*, from the list of all runs."""
        link = rf'class="go" href="([^"]+)">{re.escape(name)}<'
        found = re.search(link, self.get("/runs").text)
        assert found, f"no link to {name}"
        return found[1]

    def runs(self) -> list[Run]:
        """Return the runs that were started, of all projects."""
        opened = [open_project(folder, trust=True) for folder in self.projects]
        found = [one.run(name) for one in opened for name in (None, *one.run_names())]
        return [run for run in found if run.head is not None]

    def run(self, name: str | None) -> Run:
        """Return the first run with that name."""
        return next(run for run in self.runs() if run.name == name)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the sample projects, which nobody changes."""
    folder = tmp_path_factory.mktemp("sample")
    make_all(folder)
    return folder


@pytest.fixture(scope="session")
def looking(made: Path) -> Iterator[Client]:
    """Return a client of pages over the sample, to look only."""
    with Client([made / "shop", made / "docs"], SEQUENCER_TRUST="all") as client:
        yield client


class Serve(Protocol):
    """Starts a server of pages over projects; it ends with the test."""

    def __call__(self, projects: list[Path], **more: Any) -> Client: ...


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that serves trusted projects."""
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    with ExitStack() as stack:
        yield lambda projects, **more: stack.enter_context(Client(projects, **more))


@pytest.fixture
def client(made: Path, tmp_path: Path, serve: Serve) -> Client:
    """Return a client of pages over a copy of the sample, which is trusted."""
    return serve([shutil.copytree(made / name, tmp_path / name) for name in ("shop", "docs")])


@pytest.fixture
def untrusted(made: Path, tmp_path: Path, serve: Serve) -> Client:
    """Return a client of pages over projects that nobody has trusted, except the one `own`."""
    copies = {"shop": "shop", "docs": "docs", "own": "docs"}
    folders = [shutil.copytree(made / source, tmp_path / name) for name, source in copies.items()]
    return serve(folders, SEQUENCER_TRUST=str(folders[-1]))


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
