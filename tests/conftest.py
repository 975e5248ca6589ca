"""What holds for all tests, however they are started."""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from sequencer import SequencerError
from sequencer.errors import DecisionRefused, NotTrusted
from sequencer.store.identity import is_inside_agent
from tests.boundary.traced import tracer
from tests.continued import MISFITS, watch_changes
from tests.isolation import isolate
from tests.scratch_folders import scratch_folder

PACKAGE = Path(__file__).parent.parent / "sequencer"
MEMORY = Path("/dev/shm")  # noqa: S108 (pytest makes a folder of this user's own in it)
ENOUGH_BYTES = 2 * 1024**3
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""Variable with the folder in which pytest makes its temporary ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C mean something, and let no command compile the program once more."""
    # A shell starts what it puts in the background deaf to Ctrl-C, and so are its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup they are deaf to SIGHUP, which sequencer respects.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Each process of pytest-xdist as well: a test that removes this user's records must not take
    # those that a test of another process has just written.
    folders = contextlib.ExitStack()
    isolate(folders.enter_context(scratch_folder()))
    config.add_cleanup(folders.close)
    watch_changes()
    # With PYTHONDONTWRITEBYTECODE each of hundreds of processes would, for half a second.
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(PACKAGE, quiet=2)
        # Half of the time would go to syncs, of which no test can see on what they end.
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
            os.environ.setdefault(TEMPORARY, str(MEMORY))
    # How long a machine takes for an example is no property, and no test writes into this folder.
    settings.register_profile("project", deadline=None, database=None)
    settings.load_profile("project")
    # What is collected now is there to the end: a third of the time went into looking at it.
    gc.disable()


NEED_NO_PERSON = ("project", "property", "unit")
"""Folders whose tests mostly decide nothing; those of the others start commands that do."""
INSIDE = "this runs inside of an agent's step, where nobody decides: run it from your own shell"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of slow tests that every push runs; skip what an agent can't do."""
    choose_samples(items)
    # No variable makes an agent a person.
    if is_inside_agent():
        note_refusals()
        for item in items:
            if item.path.relative_to(Path(__file__).parent).parts[0] not in NEED_NO_PERSON:
                item.add_marker(pytest.mark.skip(reason=INSIDE))


def choose_samples(items: list[pytest.Item]) -> None:
    """Mark *n* cases of each test that is marked ``slow(sample=n)``, evenly spread."""
    cases = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0], marker.kwargs.get("sample", 0)].append(item)
    for (_, sample_size), found in cases.items():
        for number in range(min(sample_size, len(found))):
            found[number * len(found) // sample_size].add_marker("sample")


REFUSED: list[SequencerError] = []
"""What this process was refused in the present test because an agent asked."""


def note_refusals() -> None:
    """Note in `REFUSED` each refusal that is made from now on."""

    def noting(kind: type[SequencerError], made: Callable[..., None]) -> None:
        def make(error: SequencerError, *args: Any, **kwargs: Any) -> None:
            REFUSED.append(error)
            made(error, *args, **kwargs)

        kind.__init__ = make  # type: ignore[assignment, method-assign]

    for kind in (DecisionRefused, NotTrusted):
        noting(kind, kind.__init__)


def pytest_runtest_setup() -> None:
    """Begin each test without refusals and misfits."""
    REFUSED.clear()
    MISFITS.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    """Let a test fail that has written a journal that does not continue."""
    result = yield
    assert not MISFITS, "'check' would say that the journal does not continue"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """Call it skipped what failed in the other folders because an agent was refused."""
    report = yield
    if report.failed and REFUSED:
        where = (str(report.location[0]), report.location[1] or 0, f"Skipped: {INSIDE}")
        report.outcome, report.longrepr = "skipped", where
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say, with ``-q`` too, what nobody looked at on this machine."""
    if tracer() is None:
        terminalreporter.write_line(
            "strace can't be used here: what processes asked of the kernel was not looked at"
        )
    skipped = [
        one for one in terminalreporter.stats.get("skipped", ()) if INSIDE in str(one.longrepr)
    ]
    if skipped:
        line = f"NOT ALL WAS TESTED: {len(skipped)} tests were skipped, because {INSIDE}"
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a process that has nothing left take tests from one that has.

    Half of the time is in a tenth of the tests, and they stand beside each other: dealt
    out in portions, they kept one process busy for two minutes more than the others.
    """
    if config.getoption("dist") != "load":
        return None  # it was asked for
    # With -p no:xdist there is none, and nobody asks.
    from xdist.scheduler import WorkStealingScheduling  # type: ignore[import-untyped]  # noqa: PLC0415

    return WorkStealingScheduling(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the thousands of tests to be run out of every search for garbage."""
    del session
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def asleep() -> Iterator[int]:
    """A descriptor that never becomes readable."""
    read_fd, write_fd = os.pipe()
    yield read_fd
    os.close(read_fd)
    os.close(write_fd)
