"""`web`: the runs in a browser."""

from __future__ import annotations

import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from importlib.util import find_spec
from pathlib import Path

import click

from sequencer.cli.context import Invocation, refuse
from sequencer.cli.options import pass_invocation, verb
from sequencer.documents.files import is_inside_agent
from sequencer.errors import ConfigurationError, UsageRefused

EXTRA = "pip install 'step-sequencer[web]'"
NEEDED = ("jinja2", "starlette", "uvicorn")
BACKLOG = 1024


@verb("web", has_json=False)
@click.argument(
    "folders",
    nargs=-1,
    metavar="[DIR]...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8420,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where it listens."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="What browsers call it: HOST[:PORT], or https://HOST where something encrypts.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Has the key of the link; without it each start makes one.",
)
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@pass_invocation
def web(
    invocation: Invocation,
    *,
    folders: tuple[Path, ...],
    port: int,
    bind: str,
    names: tuple[str, ...],
    token_file: Path | None,
    no_browser: bool,
) -> None:
    """Show the runs of this project, or of the projects in DIR..., in a browser.

    What needs you, every run with its graph, steps, logs and costs, and the buttons of approve,
    answer, pause, stop and retry. Only this machine can reach it, and only who opens the link
    that is printed. Needs the extra 'web'.

    \b
    Examples:
      sequencer web
      sequencer web ~/shop ~/docs --port 0 --no-browser
    """
    if is_inside_agent():
        refuse(invocation.verb, "its buttons decide for a person")
    ensure_extra()
    # No other command may pay for these.
    from sequencer.web import guard, server, site  # noqa: PLC0415
    from sequencer.web.hooks import door  # noqa: PLC0415

    shown = site.Site(folders)
    if not folders:
        settings = invocation.project().settings
        shown = site.Site((settings.project_dir,), settings.config_path)
    given = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    token = guard.ensure_token(bind, given)
    keys = guard.Keys(token)
    with _listening(bind, port) as listener:
        port = listener.getsockname()[1]
        origins = guard.origins_of(bind, port, names)
        pages = guard.PageGuard(server.make_app(shown, keys.form), keys, origins, port)
        app = door.opened(pages, origins, shown.projects.values(), invocation.say)
        link = f"{origins[0]}/login?token={token}"
        invocation.echo(link, is_verbatim=True)
        if guard.OWN_NAME in link:
            # Not the link again: under a service this goes to a log.
            invocation.say(f"if your browser does not know {guard.OWN_NAME}, say 127.0.0.1")
        invocation.say("Ctrl-C ends these pages; the runs continue")
        with nullcontext() if no_browser else _opened(link):
            server.serve(app, listener)


@contextmanager
def _opened(link: str) -> Iterator[None]:
    """Open *link* in a browser; while the block lasts a file of this user's leads it there.

    The link itself would stand in the browser's command line, which everybody on this machine
    can read.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(f'<meta http-equiv="refresh" content="0;url={escape(link)}">')
        file.flush()
        webbrowser.open(Path(file.name).as_uri())
        yield


def ensure_extra() -> None:
    """Return if what draws the pages is installed.

    Raises:
        ConfigurationError: it is not.
    """
    if not all(map(find_spec, NEEDED)):
        raise ConfigurationError("the pages need the extra 'web'", hint=EXTRA)


def _listening(bind: str, port: int) -> socket.socket:
    """Return a socket that listens, so that the link is right before it is printed.

    Raises:
        UsageRefused: the address is taken, or none of this machine's.
    """
    try:
        kind = socket.AF_INET6 if ":" in bind else socket.AF_INET
        return socket.create_server((bind, port), family=kind, backlog=BACKLOG)
    except OSError as error:
        raise UsageRefused(
            f"can't listen at {bind}, port {port}: {error.strerror or error}",
            where="sequencer web",
            hint="--port 0 takes one that is free",
        ) from error
