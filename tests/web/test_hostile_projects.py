"""What a project may do to the pages that show it: nothing, whatever is in it and becomes of it."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sequencer import open_project
from tests.unit.cli.calling import call
from tests.web.conftest import Client, Serve
from tests.web.sample import make_project, work

NASTY = '"><img src=x onerror=alert(1)><script>alert(2)</script>\x1b[2J\u202e'
RUN = "/p/shop/login-timeout"


class Tags(HTMLParser):
    """Which elements a page has, and what is odd about them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.odd: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "embed", "base") and attrs != [
            ("src", "/static/page.js"),
            ("defer", None),
        ]:
            self.odd.append(f"{tag} {attrs}")
        for name, value in attrs:
            is_link = name in ("href", "src", "action", "xlink:href", "formaction")
            if name.startswith("on") or name == "style":
                self.odd.append(f"{tag} {name}")
            if is_link and not (value or "").startswith(("/", "?", "#")):
                self.odd.append(f"{tag} {name}={value}")
            if is_link and (value or "").startswith(("//", "/\\")):
                self.odd.append(f"{tag} {name}={value}")


def test_anything_agents_and_authors_write_is_shown_as_text(tmp_path: Path, serve: Serve) -> None:
    shop = make_project(tmp_path / "shop")
    flow, agent = shop / "code-review.md", shop / "agent.py"
    bad = "x &quot;&gt;<img src=x onerror=alert(1)> javascript-alert(3)"
    flow.write_text(
        flow.read_text()
        .replace("Collect the change", f'"{bad}"')
        .replace("Is the report right?", f'"{bad}"')
        .replace("Nothing is published before", f"{bad} before")
        .replace(
            "Is this report right?", f"{bad} [x](javascript:alert(4)) ![y](http://evil.example)"
        )
    )
    code = agent.read_text().replace('f"{step} is done."', repr(NASTY))
    agent.write_text(code.replace("The login timeout moves", "javascript:alert(5) <svg onload=x>"))
    work(shop, "login-timeout", "code-review", 20)
    work(shop, "release-1.4", "ship", 10)
    client = serve([shop])
    paths = ["/", "/runs", "/costs", "/health", RUN, f"{RUN}/step/decide", f"{RUN}/step/collect"]
    release = client.url("release-1.4")
    paths += [release, f"{release}/step/0", f"{RUN}?at={NASTY}"]
    paths += [f"/runs?q={NASTY}&state={NASTY}&journal=1", f"/costs?of={NASTY}&by={NASTY}"]
    paths += [f"{RUN}/log/iter-00001_collect.log?q={NASTY}", "/runs?q=alert&journal=1"]
    for path in paths:
        answer = client.get(path.replace("#", "%23"))
        assert answer.status == 200, path
        assert Tags(answer.text).odd == [], path
        assert "\x1b" not in answer.text
        assert "\u202e" not in answer.text


def test_viewing_an_untrusted_project_runs_nothing(untrusted: Client, tmp_path: Path) -> None:
    shop, marks = tmp_path / "shop", tmp_path / "marks"
    marks.mkdir()
    program = shop / "evil.sh"
    # Whoever is caught running it is named in the failure.
    program.write_text(
        f'#!/bin/sh\n{{ echo "$0 $*"; pwd; date +%T.%N; tr "\\0" " " </proc/$PPID/cmdline; '
        f'}} >"{marks}/$$" 2>&1\n'
    )
    program.chmod(0o755)
    git = ["git", "-C", str(shop)]
    for words in (
        ["init", "-q"],
        ["config", "core.fsmonitor", str(program)],
        ["config", "core.pager", str(program)],
        ["config", "diff.external", str(program)],
        ["config", "core.sshCommand", str(program)],
        ["config", "log.showSignature", "true"],
        ["config", "gpg.program", str(program)],
        ["config", "core.hooksPath", str(shop)],
    ):
        subprocess.run([*git, *words], check=True)
    text = (shop / "orchestration.yaml").read_text()
    for kind in ("hand", "eye"):
        text = text.replace(old := f"{kind}: {{kind: command, argv: [", f"{old}{program}, ")
    (shop / "orchestration.yaml").write_text(text)
    for path in ("/", "/runs", "/costs", "/health", RUN, f"{RUN}/step/tests", "/p/shop/-"):
        answer = untrusted.get(path)
        assert (path, answer.status) == (path, 200), answer.text
    assert [one.read_text() for one in marks.iterdir()] == []


def test_a_project_replaced_by_a_link_shows_and_changes_nothing_else(
    client: Client, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for folder in client.projects:
        assert call(folder, "trust", "--yes").code == 0
    client = serve(client.projects)
    assert "/do/pause" in client.get(RUN).text
    secret = tmp_path / "secret"
    (tmp_path / "shop").rename(secret)
    (tmp_path / "shop").symlink_to(secret)
    other = open_project(secret).run("login-timeout").head
    for path in ("/", "/runs", RUN, f"{RUN}/log/iter-00001_collect.log/raw", "/health"):
        assert client.get(path).status in (200, 404, 409)
    assert client.post(f"{RUN}/do/pause").status in (404, 409)
    assert open_project(secret).run("login-timeout").head == other


@pytest.mark.parametrize("folder", ["sync", "logs"])
def test_a_run_folder_replaced_by_a_link_is_not_followed(
    client: Client, tmp_path: Path, folder: str
) -> None:
    assert client.get(RUN).status == 200
    here, there = tmp_path / "shop" / folder, tmp_path / "elsewhere"
    # Another folder: the one that was read a moment ago may be held open, and is no danger.
    shutil.copytree(here, there)
    here.rename(tmp_path / "moved")
    here.symlink_to(there)
    if folder == "logs":
        for path in ("", "/raw"):
            answer = client.get(f"{RUN}/log/iter-00001_collect.log{path}")
            assert answer.status in (404, 409)
            assert "works on collect" not in answer.text
        assert "works on collect" not in client.get(f"{RUN}/step/collect").text
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    client.post(f"{RUN}/do/pause")
    assert {path: path.read_bytes() for path in before} == before
