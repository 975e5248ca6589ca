"""What of this package and of those that it uses is installed, and how to add an extra."""

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
"""Extras that no run uses."""


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that this one uses, by name; of what is there."""
    found: dict[str, str] = {}
    with suppress(Exception):
        for line in requires("step-sequencer") or ():
            if _DEVELOPMENT.search(line):
                continue
            name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
            with suppress(Exception):
                found[name] = version(name)
    return dict(sorted(found.items()))


def extra_hint(extra: str) -> str:
    """Return the command that adds the *extra* to this installation, from where it came.

    Before a release an index does not have the package, and a tool's own environment is
    changed by that tool alone.
    """
    found: dict[str, Any] = {}
    with suppress(Exception):
        # What an installer has written, if it has; any of it may be missing or damaged.
        found = json.loads(distribution("step-sequencer").read_text("direct_url.json") or "{}")
    return shlex.join([*_installer(found), _requirement(extra, found)])


def _installer(found: Mapping[str, Any]) -> Iterator[str]:
    if Path(sys.prefix, "uv-receipt.toml").exists():
        yield from ("uv", "tool", "install")
    elif Path(sys.prefix, "pipx_metadata.json").exists():
        yield from ("pipx", "install", "--force")
    else:
        yield from ("pip", "install") if find_spec("pip") else ("uv", "pip", "install")
        if found.get("dir_info", {}).get("editable"):
            yield "-e"


def _requirement(extra: str, found: Mapping[str, Any]) -> str:
    url, name = str(found.get("url", "")), f"step-sequencer[{extra}]"
    if not url:
        return name
    if url.startswith("file://") and "dir_info" in found:
        return f"{unquote(urlsplit(url).path)}[{extra}]"
    vcs = found.get("vcs_info", {})
    return f"{name} @ {vcs['vcs']}+{url}" if vcs else f"{name} @ {url}"
