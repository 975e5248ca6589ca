"""Projects whose pages are rendered without a server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sequencer import commands, open_project
from sequencer.plugins.web.site import Site
from tests.web.sample import make_project, work


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two projects, with a run that waits for a person, and a paused one."""
    folder = tmp_path_factory.mktemp("pages")
    shop, docs = make_project(folder / "shop"), make_project(folder / "docs")
    work(shop, None, "loop", 9)
    work(shop, "login-timeout", "code-review", 20)
    work(docs, None, "loop", 1)
    open_project(docs, trust=True).run(None).do(commands.Pause())
    return folder


@pytest.fixture
def site(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return the pages' data of a copy of these projects, which is trusted."""
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    monkeypatch.delenv("SEQUENCER_TOKEN", raising=False)
    return Site([shutil.copytree(made / name, tmp_path / name) for name in ("shop", "docs")])
