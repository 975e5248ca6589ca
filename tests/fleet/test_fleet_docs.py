"""What the pages tell to type for a trial and for many machines works as it is printed."""

from __future__ import annotations

import shlex
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fleet.fleet_projects import CYCLE, FleetProject
from tests.loopback import free_ports
from tests.project.documents import ROOT, commands, fences

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
STAYS = {True: "Temporal listens on", False: "serving"}
"""What a worker, which stays until a signal ends it, says when it is ready: for a trial or not."""
PAGES = {
    "README.md": "## Many machines",
    "docs/how-to/many-machines.md": "# Many machines, many runs",
}
END = "`sequencer stop --pause` and `sequencer stop` end it early"
"""What comes after it is about runs that are elsewhere, and has tests of its own."""


def typed(page: Path, heading: str) -> list[list[str]]:
    """Return the arguments of each command of *page* from *heading* on, until `END`."""
    lines = page.read_text().splitlines()
    first = lines.index(heading)
    last = next(
        (n for n, text in enumerate(lines) if n > first and (END in text or text == "## How to")),
        len(lines),
    )
    found = [one for one in fences(page) if first < one.line < last and one.language == "console"]
    told = [shlex.split(command.text) for fence in found for command in commands(fence)]
    return [words[1:] for words in told if words[0] == "sequencer"]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_in_their_order(page: str, tmp_path: Path) -> None:
    port = free_ports(1)[0] % 50_000 + 10_000
    store = f'store: {{kind: temporal, address: "127.0.0.1:{port}", project: shop}}'
    here = FleetProject(tmp_path / "shop", CYCLE, store)
    asked = typed(ROOT / page, PAGES[page])
    assert {True, False} == {"--trial" in words for words in asked if words[0] == "worker"}
    staying = []
    with ExitStack() as stack:
        for words in asked:
            if words[0] == "worker":
                process = stack.enter_context(here.process(*words))
                assert process.stdout is not None
                assert STAYS["--trial" in words] in process.stdout.readline(), words
                staying.append(process)
            else:
                ended = here.cli(*words)
                assert ended.returncode == 0, (words, ended.stderr)
        for process in reversed(staying):
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
