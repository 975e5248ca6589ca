"""The pages over runs on a real server: looked at, decided over, and with the server away."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.clones import git
from tests.fleet.fleet_projects import (
    CODE,
    CYCLE,
    FLOW,
    PROCEDURE,
    FleetProject,
    clones,
    until,
)
from tests.fleet.server import TemporalServer

pytest.importorskip("starlette", reason="the extra 'web' is not installed")
pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]
WAITS = 4
"""Exit code of a run that asks a person."""
Make = Callable[[str], FleetProject]


class Reader:
    """A browser without scripts."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.host, self.port = f"127.0.0.1:{parts.port}", parts.port
        self.cookie = ""
        _, _, headers = self.ask("GET", f"{parts.path}?{parts.query}")
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(
        self, method: str, path: str, form: Mapping[str, str] | None = None
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": self.host, "Cookie": self.cookie}
        if form is not None:
            sent |= {"Origin": f"http://{self.host}"}
            sent |= {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, urlencode(form or {}), sent)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(), answer.headers
        connection.close()
        return found

    def page(self, path: str) -> str:
        status, text, _ = self.ask("GET", path)
        assert status == 200, text
        return text

    def press(self, page: str, verb: str, **more: str) -> int:
        """Send the form of *page* that does *verb*, with *more* fields."""
        form = re.findall(rf'<form method="post" action="([^"]+/do/{verb})"', page)
        text = page[page.index(form[0]) :].partition("</form>")[0]
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
        return self.ask("POST", form[0], {**fields, **more})[0]


@contextmanager
def pages(project: FleetProject) -> Iterator[Reader]:
    with project.process("web", "--port", "0", "--no-browser") as server:
        assert server.stdout is not None
        yield Reader(server.stdout.readline().strip())


def test_a_run_on_a_server_is_shown_and_its_gate_approved(project: Make) -> None:
    here = project(PROCEDURE)
    assert here.cli("run").returncode == WAITS
    run = f"/p/{here.folder.name}/-"
    with pages(here) as reader:
        page = reader.page("/")
        assert "Approve plan?" in page
        assert "did plan 0" in page
        assert "waiting for you" in reader.page("/runs")
        step = reader.page(f"{run}/step/0")
        assert "did plan 0" in step
        assert "Do main." in step
        assert "as it was sent" in step
        assert reader.press(page, "approve") == 303
        assert "Approve plan?" not in reader.page("/"), "seen at once, by who has decided"
        assert here.cli("run").returncode == 0
        until(lambda: "done" in reader.page(run))
        assert "did build 1" in reader.page(f"{run}/step/1")
        for path in ("/costs", "/health"):
            assert reader.page(path)


def test_a_change_on_the_server_reaches_an_open_page(project: Make) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "1").returncode == 0
    run = f"/p/{here.folder.name}/-"
    with pages(here) as reader:
        identity = re.findall(r'data-id="(\w+)"', reader.page(run))[0]
        connection = http.client.HTTPConnection("127.0.0.1", reader.port, timeout=30)
        sent = {"Host": reader.host, "Cookie": reader.cookie}
        connection.request("GET", f"/live?at={run}&id={identity}", headers=sent)
        stream = connection.getresponse()
        assert here.cli("stop", "--pause").returncode == 0
        lines = iter(stream.readline, b"")
        assert any(b"paused" in line for line in lines if line.startswith(b"data:"))
        connection.close()


def test_a_flow_on_a_server_is_drawn_and_answered(project: Make) -> None:
    here = project(CYCLE)
    (here.folder / "review.md").write_text(FLOW)
    assert here.cli("--run", "one", "run", "review.md").returncode == WAITS
    run = f"/p/{here.folder.name}/one"
    with pages(here) as reader:
        page = reader.page(run)
        assert '<g class="node waiting">' in page
        assert 'id="n-prose"' in page
        assert reader.press(page, "answer", value="approve") == 303
        assert '<g class="node waiting">' not in reader.page(run)


def test_a_step_of_another_machine_shows_its_diff_and_the_place_of_its_log(
    tmp_path: Path, address: str
) -> None:
    name = tmp_path.name
    store = f'store: {{kind: temporal, address: "{address}", project: {name}}}'
    a, b = clones(tmp_path, CODE, store, "a", "b")
    assert a.cli("run", "--max-steps", "3").returncode == 0
    git(b.folder, "fetch", "-q")
    with pages(b) as reader:
        step = reader.page("/p/b/-/step/1")
    assert '<span class="add">+1' in step
    assert '<span class="add">+0' not in step
    assert "It is on " in step
    assert "iter-00002" in step


def test_a_server_that_is_away_is_reported_and_nothing_hangs(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "server")
    store = f'store: {{kind: temporal, address: "{server.address}", project: p}}'
    here = FleetProject(tmp_path / "p", CYCLE, store)
    with ExitStack() as stack:
        with server:
            assert here.cli("run", "--max-steps", "1").returncode == 0
            reader = stack.enter_context(pages(here))
            assert "supervisor" in reader.page("/p/p/-")
        until(lambda: "can&#39;t be reached" in reader.page("/"))
        began = time.monotonic()
        assert reader.ask("GET", "/p/p/-")[0] == 503
        assert "The server of these runs can&#39;t be reached" in reader.ask("GET", "/p/p/-")[1]
        for path in ("/runs", "/costs", "/health"):
            assert reader.page(path)
        assert time.monotonic() - began < 5, "no page asks the server itself"
        with server:
            until(lambda: reader.ask("GET", "/p/p/-")[0] == 200)
