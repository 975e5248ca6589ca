"""The site of the documents is built from them, whole, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.documents import ROOT, pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
"""Building it uses 20 s of CPU, which takes minutes on a busy machine."""
_LOADED = re.compile(r"""(?:\ssrc=|<link[^>]*\shref=|url\(|@import )["']?(https?:|//)[^"')]*""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site; a warning, such as a link to nothing, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs"]
    built = subprocess.run(
        [*command, "-d", str(folder / "read"), ".", str(folder / "built")],
        cwd=ROOT,
        env={**os.environ, "https_proxy": "http://127.0.0.1:9", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "built"


def test_the_site_has_every_page(site: Path) -> None:
    expected = {page.relative_to(ROOT).with_suffix(".html") for page in pages()}
    built = {file.relative_to(site) for file in site.rglob("*.html")}
    assert expected - built == set()
    assert (site / "index.html").read_text() == (site / "README.html").read_text()


def test_the_sidebar_leads_to_every_page(site: Path) -> None:
    reached, to_read = set(), [site / "index.html"]
    while to_read:
        page = to_read.pop()
        if page in reached:
            continue
        reached.add(page)
        listed = re.findall(r'class="reference internal" href="([^"#]+)"', page.read_text())
        to_read += [(page.parent / one).resolve() for one in listed if one.endswith(".html")]
    wanted = {site / page.relative_to(ROOT).with_suffix(".html") for page in pages()}
    # The front page is the folder's own.
    assert wanted - reached - {site / "README.html"} == set()


def test_charts_are_pictures(site: Path) -> None:
    for page in ("README.html", "examples/flows/triage.html", "docs/reference/teams.html"):
        assert "<svg xmlns=" in (site / page).read_text().partition("<article")[2], page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert _LOADED.search('<script src="https://cdn.example/x.js">')
    assert _LOADED.search("@import 'https://fonts.example/x.css'")
    files = [file for file in site.rglob("*") if file.suffix in {".html", ".css"}]
    found = [(file.name, one[0]) for file in files for one in _LOADED.finditer(file.read_text())]
    assert found == []
