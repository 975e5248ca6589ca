"""`web`: the runs in a browser."""

from __future__ import annotations

import re
import socket
import stat
import tempfile
import webbrowser
from contextlib import ExitStack
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.project.dependencies import extra_hint
from sequencer.store.identity import ensure_person

NEEDED = ("jinja2", "starlette", "uvicorn")
BACKLOG = 1024
LOOPBACK = ("127.0.0.1", "::1")


_NAME = re.compile(
    r"(?:https?://)?(?P<host>[\w-]{1,63}(?:\.[\w-]{1,63})*\.?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?/*",
    re.ASCII | re.IGNORECASE,
)
"""HOST[:PORT], with or without a scheme."""
_MAX_HOST_CHARS, _MAX_PORT = 253, 65_535


def parse_names(
    _context: click.Context, _option: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the values of ``--name``: no browser sends any other text as a host name.

    Raises:
        UsageRefused: one of them is not a host name.
    """
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or len(match["host"]) > _MAX_HOST_CHARS:
            raise UsageRefused(
                f"{name!r} is not the name of a host",
                where="--name",
                hint="write HOST[:PORT], or https://HOST if a proxy encrypts; no path follows",
            )
        if match["port"] is not None and not 1 <= int(match["port"]) <= _MAX_PORT:
            raise UsageRefused(f"{name!r}: a port is from 1 to {_MAX_PORT}", where="--name")
    return names


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
    callback=parse_names,
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
    # Imported here, so that no other command takes the time.
    from sequencer.plugins.web import guard, server, site  # noqa: PLC0415
    from sequencer.plugins.web.webhooks import receiver  # noqa: PLC0415

    config = None if folders else invocation.project().settings
    website = site.Site((config.project_dir,), config.config_path) if config else site.Site(folders)
    token = guard.ensure_token(bind, None if token_file is None else read_key(token_file))
    keys = guard.Keys(token)
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in _listeners(bind, port)]
        port = listeners[0].getsockname()[1]
        origins = guard.list_origins(bind, port, names)
        link = guard.make_link(origins[0], token)
        opener = None if no_browser else stack.enter_context(_link_file(link))
        on_open = None if opener is None else opener.close
        pages = guard.PageGuard(server.make_app(website, keys.form), keys, origins, port, on_open)
        app = receiver.WebhookReceiver(pages, origins, website, invocation.notify)
        app.begin()
        invocation.echo(link, is_verbatim=True)
        if guard.OWN_NAME in link:
            # Without the link: this message may go to a service's log.
            invocation.notify(f"if your browser does not find {guard.OWN_NAME}, use 127.0.0.1")
        invocation.notify("Ctrl-C ends the pages; the runs continue")
        if opener is not None:
            webbrowser.open(Path(opener.name).as_uri())
        server.serve(app, listeners)


def _link_file(link: str) -> IO[str]:
    """Return a file, private to this user, that sends a browser to *link*; closing removes it.

    The link itself would be in the browser's command line, which every user of this machine can
    read. The file is removed as soon as a browser has signed in, because agents can read it.
    """
    file = tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8")  # noqa: SIM115
    file.write(f'<meta http-equiv="refresh" content="0;url={escape(link)}">')
    file.flush()
    return file


def read_key(path: Path) -> str:
    """Return the link's key from the file at *path*.

    Raises:
        UsageRefused: other users of this machine can read or change the file, or it isn't text.
    """
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageRefused(
            f"others can read or change {path}", where="--token-file", hint=f"chmod 600 {path}"
        )
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UsageRefused(
            f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}",
            where="--token-file",
            hint="write the key as plain text into the file",
        ) from error


def ensure_extra() -> None:
    """Check that the packages of the extra 'web' are installed.

    Raises:
        ConfigurationError: one is missing.
    """
    if not all(map(find_spec, NEEDED)):
        raise ConfigurationError("the pages need the extra 'web'", hint=extra_hint("web"))


def _listeners(bind: str, port: int) -> list[socket.socket]:
    """Return sockets that already listen, so that the printed link works.

    For a loopback address, both the IPv4 and the IPv6 form are taken: a browser tries either one
    for a name such as localhost, and another program that had the other one would get the key.

    Raises:
        UsageRefused: the port is taken, or this machine does not have the address.
    """
    listeners: list[socket.socket] = []
    for address in LOOPBACK if bind in {*LOOPBACK, "localhost"} else (bind,):
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        chosen_port = listeners[0].getsockname()[1] if listeners else port
        try:
            listeners.append(
                socket.create_server((address, chosen_port), family=kind, backlog=BACKLOG)
            )
        except OSError as error:
            if address == LOOPBACK[1] and error.errno in (EADDRNOTAVAIL, EAFNOSUPPORT):
                continue  # This machine has no such address, so no other program listens there.
            for listener in listeners:
                listener.close()
            if listeners and not port:
                # Any port will do, so try another one that is free in both forms.
                return _listeners(bind, port)
            is_of_port = error.errno in (EADDRINUSE, EACCES)
            hint = "--bind needs an address of this machine; without it, only this machine connects"
            raise UsageRefused(
                f"can't listen at {address}, port {chosen_port}: {error.strerror or error}",
                where="sequencer web",
                hint="--port 0 takes a free port" if is_of_port else hint,
            ) from error
    return listeners
