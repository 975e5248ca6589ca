"""`web`: the runs in a browser."""

from __future__ import annotations

import socket
import stat
import tempfile
import webbrowser
from contextlib import ExitStack
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.project.extras import extra_hint
from sequencer.store.identity import ensure_person

NEEDED = ("jinja2", "starlette", "uvicorn")
BACKLOG = 1024
LOOPBACK = ("127.0.0.1", "::1")


@verb("web", has_json=False, has_secrets=True)
@click.argument(
    "folders",
    nargs=-1,
    metavar="[DIR]...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=8420,
    show_default=True,
    help="Port of the pages; 0 takes any free one.",
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Name of this machine in browsers: HOST[:PORT], or https://HOST if a proxy encrypts.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the key of the link from FILE; without it, each start makes one.",
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

    The pages show what needs you, and every run with its graph, steps, logs and costs. They
    have buttons to approve, answer, pause, stop and retry. Only this machine can reach them,
    and only a browser that has opened the printed link. Needs the extra 'web'.

    \b
    Examples:
      sequencer web
      sequencer web ~/shop ~/docs --port 0 --no-browser
    """
    ensure_person(invocation.verb, "its buttons make a person's decisions")
    ensure_extra()
    # No other command may pay for these.
    from sequencer.plugins.web import guard, server, site  # noqa: PLC0415
    from sequencer.plugins.web.webhooks import receiver  # noqa: PLC0415

    own = None if folders else invocation.project().settings
    shown = site.Site(folders) if own is None else site.Site((own.project_dir,), own.config_path)
    token = guard.ensure_token(bind, None if token_file is None else read_key(token_file))
    keys = guard.Keys(token)
    with ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in _listening(bind, port)]
        port = listeners[0].getsockname()[1]
        origins = guard.origins_of(bind, port, names)
        link = f"{origins[0]}/login?token={token}"
        way = None if no_browser else stack.enter_context(_way_to(link))
        made = server.make_app(shown, keys.form)
        pages = guard.PageGuard(made, keys, origins, port, opened=way.close if way else None)
        app = receiver.WebhookReceiver(pages, origins, shown, invocation.say)
        app.begin()
        invocation.echo(link, is_verbatim=True)
        if guard.OWN_NAME in link:
            # Not the link again: under a service this goes to a log.
            invocation.say(f"if your browser does not find {guard.OWN_NAME}, use 127.0.0.1")
        invocation.say("Ctrl-C ends the pages; the runs continue")
        if way is not None:
            webbrowser.open(Path(way.name).as_uri())
        server.serve(app, listeners)


def _way_to(link: str) -> IO[str]:
    """Return a file of this user's that leads a browser to *link*; who closes it removes it.

    The link itself would stand in the browser's command line, which everybody on this machine
    can read. The file goes as soon as a browser was let in: agents can read files of this user.
    """
    file = tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8")  # noqa: SIM115
    file.write(f'<meta http-equiv="refresh" content="0;url={escape(link)}">')
    file.flush()
    return file


def read_key(path: Path) -> str:
    """Return the key of the link that the file at *path* has.

    Raises:
        UsageRefused: other users of this machine can read it, or change it.
    """
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageRefused(
            f"others can read or change {path}", where="--token-file", hint=f"chmod 600 {path}"
        )
    return path.read_text(encoding="utf-8").strip()


def ensure_extra() -> None:
    """Return if what draws the pages is installed.

    Raises:
        ConfigurationError: it is not.
    """
    if not all(map(find_spec, NEEDED)):
        raise ConfigurationError("the pages need the extra 'web'", hint=extra_hint("web"))


def _listening(bind: str, port: int) -> list[socket.socket]:
    """Return sockets that listen, so that the link is right before it is printed.

    Of this machine's own address both forms are taken: a browser tries either for a name such as
    localhost, and whoever had the other one would be given the key.

    Raises:
        UsageRefused: the address is taken, or none of this machine's.
    """
    found: list[socket.socket] = []
    for address in LOOPBACK if bind in {*LOOPBACK, "localhost"} else (bind,):
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        own = found[0].getsockname()[1] if found else port
        try:
            found.append(socket.create_server((address, own), family=kind, backlog=BACKLOG))
        except OSError as error:
            if address == LOOPBACK[1] and error.errno in (EADDRNOTAVAIL, EAFNOSUPPORT):
                continue  # This machine has no such address, so nobody else listens there.
            for one in found:
                one.close()
            if found and not port:
                return _listening(bind, port)
            raise UsageRefused(
                f"can't listen at {address}, port {own}: {error.strerror or error}",
                where="sequencer web",
                hint="--port 0 takes a free port",
            ) from error
    return found
