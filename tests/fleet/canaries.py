"""Secrets in every place of a project, and the server's whole database read for them.

The server is behind TLS and a key. What agents tell is what the campaign of secrets in files
lets them tell; beside it stand secrets in prompts, in hooks, and in this process's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fleet.fleet_projects import FleetProject
from tests.fleet.recorded import Arena
from tests.fleet.tls_proxy import Authority, TlsProxy, locked
from tests.long.report import Report, Size
from tests.property import spilt_secrets as spills

KEY, PROMPT = "canary-key-0b7d31e9aa", "canary-prompt-5c2f84d1b3"
HOOKS = """\
import os
import sequencer

@sequencer.hookimpl
def sequencer_transition(context, outcome):
    print("a hook says", os.environ["MY_API_KEY"])
    reason = f"a hook knows {os.environ['MY_API_KEY']}"
    if context.attempt == 1 and outcome.is_accepted:
        return sequencer.Decision(sequencer.Move.RETRY, reason=reason)
    if outcome.is_accepted:
        raise RuntimeError(reason)
    return None
"""
MUST_BE_THERE = b"[secret]"
"""Otherwise nothing was read that tells anything."""


def campaign(folder: Path, size: Size) -> Report:
    """Secrets in environment, settings, prompts, hooks, outputs, keys: none is on the server."""
    ways: tuple[str, ...] = (*spills.COMMAND_WAYS, *spills.CLIENT_WAYS)
    if size is Size.SHORT:
        ways = ("plain", "dying", "events")
    found, count = list[str](), 0
    with Arena(folder) as arena, _way_in(folder, arena.address) as (store, keys):
        known = [("the server's key", KEY.encode()), ("a prompt", PROMPT.encode()), *keys]
        for way in ways:
            secrets = spills.invent(random.Random(f"fleet {way}"))  # noqa: S311 - made up
            known += [(f"{way}: {name}", form) for name, form in secrets.forms()]
            count += 2 + len(secrets.shaped)
            found += _told(folder / way.replace(" ", "-"), secrets, way, store)
        found += _on_the_server(arena.server.folder, known)
    return Report({"secrets": count + len(known[:2]) + len(keys)}, tuple(found))


def _told(place: Path, secrets: spills.Secrets, way: str, store: dict[str, object]) -> list[str]:
    """Let an agent of a project tell its *secrets* in one *way*, and look at the run."""
    spills.project(place, secrets, way)
    config, prompt = place / "orchestration.yaml", place / "prompts" / "main.md"
    settings = json.loads(config.read_text())
    settings |= {"store": {**store, "project": place.name}, "hooks": ["hooks.py"]}
    config.write_text(json.dumps(settings, ensure_ascii=False))
    (place / "hooks.py").write_text(HOOKS)
    prompt.write_text(f"{prompt.read_text()}{PROMPT}\n")
    here, wrong = FleetProject.at(place, {"MY_API_KEY": secrets.key}), list[str]()
    for words in ("tick", "tick", "status --json", "history --json"):
        ended = here.cli(*words.split())
        if ended.returncode not in (0, 1, 3, 75):
            wrong.append(f"{way}: {words} ended with {ended.returncode}: {ended.stderr[-500:]}")
        shown = (ended.stdout + ended.stderr).encode()
        if words != "tick":
            wrong += [f"{words} shows {name}" for name, form in secrets.forms() if form in shown]
    return wrong


def _on_the_server(data: Path, known: Sequence[tuple[str, bytes]]) -> Iterator[str]:
    """Yield the *known* secrets that stand in what the server keeps."""
    kept = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
    if MUST_BE_THERE not in b"".join(kept.values()):
        yield f"nothing was hidden in {', '.join(kept)}"
    for file, whole in kept.items():
        yield from (f"{file} holds {name}" for name, form in known if form in whole)


@contextlib.contextmanager
def _way_in(
    folder: Path, address: str
) -> Iterator[tuple[dict[str, object], list[tuple[str, bytes]]]]:
    """Open a door with TLS before the server; yield how to get in, and what of it is secret."""
    authority = Authority(folder / "authority")
    mine, server = authority.sign("mine"), authority.sign("server")
    key = mine.with_suffix(".key")
    os.environ["OUR_SERVER"] = KEY
    tls = {"ca": str(authority.ca), "cert": str(mine), "key": str(key)}
    with TlsProxy(address, locked(server, authority.ca)).opened() as door:
        store = {"kind": "temporal", "ttl_s": 3, "address": door.address, "tls": tls}
        lines = key.read_bytes().splitlines()[1:-1]
        yield {**store, "api_key_env": "OUR_SERVER"}, [("our private key", one) for one in lines]
