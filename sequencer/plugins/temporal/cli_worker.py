"""`worker`: makes attempts for the runs of a project whose store is Temporal."""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast

import click
from msgspec.structs import replace

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.signals import EndOnSignal
from sequencer.cli.views.progress import end_line, prefix_time, start_line
from sequencer.engine.events import AttemptEnded, AttemptStarted, NoticeGiven, RunEvent
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.project.dependencies import extra_hint
from sequencer.project.schema import SHARED

if TYPE_CHECKING:
    from sequencer.plugins.temporal.client import FleetStore

UI_PORTS, LAST_PORT = 1000, 65_535
"""The trial server's web view listens this far above the server's port, or below it."""
ENDING = "ending when running attempts have ended; a second signal stops them"
_LOOPBACK = ("127.0.0.1", "localhost")


def _import_temporal(module: str) -> ModuleType:
    """Return *module*, which needs Temporal's package; the help of this verb must not need it.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return import_module(f"sequencer.plugins.temporal.{module}")
    except ImportError as error:
        hint = extra_hint("fleet")
        raise ConfigurationError("Temporal's package is not installed", hint=hint) from error


def _open_store(invocation: Invocation) -> FleetStore:
    """Return the store of the default run.

    Raises:
        ConfigurationError: Temporal's package is not installed.
        UsageRefused: the project's runs are not on Temporal.
    """
    _import_temporal("client")
    project = invocation.project()
    if (kind := project.settings.store.kind) != "temporal":
        raise UsageRefused(
            f"{invocation.verb} works only with runs on Temporal, but the store of these is {kind}",
            where="store.kind",
            hint="'store: {kind: temporal}' in orchestration.yaml; 'sequencer run' works here",
        )
    return cast("FleetStore", project.store(None))


@verb("worker", has_json=False, has_secrets=True)
@click.option(
    "--max-parallel",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Most attempts at the same time; default run.max_parallel.",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="Serve the runs of this queue or machine; default store.queue.",
)
@click.option(
    "--trial", is_flag=True, help="Start a Temporal server for a trial instead, until Ctrl-C."
)
@pass_invocation
def worker(
    invocation: Invocation, *, max_parallel: int | None, queue: str | None, trial: bool
) -> None:
    """Make attempts for every run of the project, until a signal ends it.

    It makes the attempts that a 'sequencer run' permits, here or on another machine. After the
    first Ctrl-C or SIGTERM, it waits for its running attempts and then ends; the second one
    stops them, and other workers make them again.

    \b
    Examples:
      sequencer worker --max-parallel 2
      sequencer worker --trial
    """
    if trial:
        if max_parallel is not None or queue is not None:
            raise UsageRefused("can't be used with another option of worker", where="--trial")
        _serve_trial(invocation)
        return
    store, project = _open_store(invocation), invocation.project()
    if queue is not None:
        store.options = replace(store.options, place="" if queue == SHARED else queue)
    project.ensure_may_act()
    max_parallel = max_parallel or project.settings.run.max_parallel
    # Fail now if the server can't be reached, before anyone relies on this worker.
    store.refresh_description()
    invocation.notify(f"serving {store.options.queue} at {store.options.address}")
    with EndOnSignal(lambda _: invocation.notify(ENDING)) as signals:
        _import_temporal("worker").serve(
            store, max_parallel, signals.on_ready, partial(_print_event, invocation)
        )


def _print_event(invocation: Invocation, run: str | None, event: RunEvent) -> None:
    """Say what happens in an attempt at *run*."""
    match event:
        case AttemptStarted(attempt, log):
            text = start_line(attempt, log)
        case AttemptEnded(attempt, outcome, verdict):
            text = end_line(attempt, outcome, verdict)
        case NoticeGiven(text):
            text = f"notice: {text}"
        case _:
            return
    invocation.notify(prefix_time(f"{run or 'default'} {text}"))


def _serve_trial(invocation: Invocation) -> None:
    """Start a Temporal server for a trial on this machine, until Ctrl-C.

    Its data stays below the state folder. Anyone on this machine can use it.
    """
    store, settings = _open_store(invocation), invocation.project().settings
    options = store.options
    host, _, port = options.address.rpartition(":")
    if host not in _LOOPBACK:
        raise UsageRefused(
            f"a trial server listens on this machine, but store.address is {options.address}",
            where="store.address",
        )
    end_event = threading.Event()
    folder = settings.state_file.parent / "fleet"
    ui_port = int(port) + (UI_PORTS if int(port) <= LAST_PORT - UI_PORTS else -UI_PORTS)
    server = _import_temporal("server").TrialServer(options, folder, ui_port)
    with EndOnSignal(lambda _: invocation.notify("ending")) as signals, server:
        signals.on_ready(end_event.set)
        invocation.echo(f"Temporal listens on {options.address}; look at {server.web}")
        invocation.notify(f"Ctrl-C ends it; its data stays in {folder}")
        while not end_event.wait(1.0):
            if server.wait(0) is not None:
                raise server.make_failure("the Temporal server has ended")
