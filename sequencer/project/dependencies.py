"""The installed versions of this package's dependencies, and how to add an extra."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_DEVELOPMENT = re.compile(r"extra == .(?:docs|fuzz|test)\b")
"""Matches extras that are only for development."""


def installed_versions() -> dict[str, str]:
    """Return name -> version for each installed dependency of this package."""
    versions: dict[str, str] = {}
    with suppress(Exception):
        for line in requires("step-sequencer") or ():
            if _DEVELOPMENT.search(line):
                continue
            name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
            with suppress(Exception):
                versions[name] = version(name)
    return dict(sorted(versions.items()))


def extra_hint(extra: str) -> str:
    """Return the command that adds the *extra* to this installation, from the same origin.

    The origin matters because an index may not have this version. The tool matters because only
    the tool that created an environment should change it.
    """
    origin: dict[str, Any] = {}
    with suppress(Exception):
        # Installers write this file, but it may be missing or damaged.
        origin = json.loads(distribution("step-sequencer").read_text("direct_url.json") or "{}")
    return shlex.join([*_install_command(origin), _requirement(extra, origin)])


def _install_command(origin: Mapping[str, Any]) -> Iterator[str]:
    if Path(sys.prefix, "uv-receipt.toml").exists():
        yield from ("uv", "tool", "install")
    elif Path(sys.prefix, "pipx_metadata.json").exists():
        yield from ("pipx", "install", "--force")
    else:
        yield from ("pip", "install") if find_spec("pip") else ("uv", "pip", "install")
        if origin.get("dir_info", {}).get("editable"):
            yield "-e"


def _requirement(extra: str, origin: Mapping[str, Any]) -> str:
    url, name = str(origin.get("url", "")), f"step-sequencer[{extra}]"
    if not url:
        return name
    if url.startswith("file://") and "dir_info" in origin:
        return f"{unquote(urlsplit(url).path)}[{extra}]"
    vcs = origin.get("vcs_info", {})
    return f"{name} @ {vcs['vcs']}+{url}" if vcs else f"{name} @ {url}"
