"""The environment of all tests: nothing of the person who runs them, the same on any machine.

What a test finds is what ``env -i PATH=… HOME=…`` would give it, with an empty home folder: no
git configuration, crontab, agents, folders or keys, no language and no terminal of anybody.
Tests that need such a thing set it themselves.

Not promised: that a tool which only optional tests need (npm, say) finds its own settings in
a home folder. Variables can name them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FAKE_PROGRAMS = Path(__file__).parent / "fake_programs"
OWN_PATH = "PYTEST_OUTER_PATH"
"""Variable with the PATH of the person, for tests that look for real agents."""
CLIENTS = ("claude", "codex", "gemini", "opencode")
"""The programs that an `agent: auto` looks for, see docs/reference/executors.md."""
_KEPT = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV"),
        # Tests that install something reach the registries as the person does.
        *("CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
        *("SSL_CERT_DIR", "SSL_CERT_FILE"),
    )
)
_KEPT_PREFIXES = (
    *("CI_REQUIRE_", "COVERAGE_", "COV_CORE_", "PLAYWRIGHT_", "PYTEST_", "SEQUENCER_TEST_"),
    *("PIP_", "UV_", "npm_config_", "NPM_CONFIG_"),
)
_KEPT_SUFFIXES = ("_proxy", "_PROXY")


def kept(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of *variables* that say how to run tests, and nothing that they look at.

    >>> kept({"PATH": "/bin", "PYTHONUNBUFFERED": "1", "TZ": "Asia/Tokyo", "PIP_CERT": "a.pem"})
    {'PATH': '/bin', 'PIP_CERT': 'a.pem'}
    """
    return {
        name: text
        for name, text in variables.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or name.endswith(_KEPT_SUFFIXES)
    }


def without_agents(folder: Path, links: Path) -> Path:
    """Return *folder* if no agent's program is in it, else *links*, with its other programs.

    A project without an agent of its own takes one that is on PATH, which may be paid for.
    """
    if not any((folder / client).exists() for client in CLIENTS):
        return folder
    links.mkdir()
    for program in folder.iterdir():
        if program.name not in CLIENTS:
            (links / program.name).symlink_to(program)
    return links


def isolate(folder: Path) -> None:
    """Give this process, and those that it starts, the environment of tests, at home in *folder*.

    Projects of tests may act; the tests of trust take that away. An agent may run the tests.
    """
    here = kept(os.environ)
    present = here.get("PATH", os.defpath)
    folders = [FAKE_PROGRAMS, *map(Path, filter(None, present.split(os.pathsep)))]
    others = (without_agents(one, folder / f"path-{n}") for n, one in enumerate(folders))
    here["PATH"] = os.pathsep.join(dict.fromkeys(map(str, others)))
    here.setdefault(OWN_PATH, present)
    # What ticks keep in memory stays with the test, whose folder a later one may have again.
    own = (("home", "HOME"), ("state", "XDG_STATE_HOME"), ("memory", "XDG_RUNTIME_DIR"))
    for name, variable in own:
        (folder / name).mkdir(exist_ok=True)
        here[variable] = str(folder / name)
    here |= {"SEQUENCER_TRUST": "all", "GIT_CONFIG_NOSYSTEM": "1"}
    os.environ.clear()
    os.environ.update(here)
    # A person may keep new files from others; what tests make has the usual modes.
    os.umask(0o022)
