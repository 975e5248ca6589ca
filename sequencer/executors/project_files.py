"""What each client reads by itself from the folder of a project, whatever its command line says.

A key that is not named as free acts. The clients' own modules are not needed for this: a
project whose agent is ``auto`` could start any of them, and to load them all takes a while.

Seen with strace: claude 2.1.332, codex 0.169.0, opencode 1.18.33. Read in its documentation:
gemini 0.61.0. Not covered: instructions (CLAUDE.md, AGENTS.md, GEMINI.md, rules, output
styles), which are prompts; the user's own folders (~/.claude, ~/.codex, …).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from sequencer.executors.protocol import words
from sequencer.store.strictjson import parse_object

MAX_SETTINGS_BYTES = 128 * 1024
"""A larger file of settings is compared as a whole."""
MAX_DOTS = 100
"""In a line of TOML: the time for a key with dots grows with the square of their number."""
Reader = Callable[[bytes], dict[str, Any]]
"""Returns the keys of a file of settings; ValueError: the file counts as a whole."""


class ProjectFiles(Struct, frozen=True):
    """Names in the project's folder, and in those above it up to the repository's root."""

    files: Mapping[str, Reader | None]
    """Each with its reader; None: any change of the file acts."""
    folders: tuple[str, ...]
    """Each file below them acts."""
    free: frozenset[str]
    """Keys of settings that change nothing an agent may do, as ``key.below``."""


def json_keys(data: bytes) -> dict[str, Any]:
    """Return the keys of a strict JSON object.

    Raises:
        ValueError: comments, a byte order mark, duplicate keys, or no JSON at all: the client
            may make something else of these.
    """
    return parse_object(data, MAX_SETTINGS_BYTES)


def toml_keys(data: bytes) -> dict[str, Any]:
    """Return the keys of a TOML document.

    Raises:
        ValueError: it is none, too large, or nested so deeply that to read it would take long.
    """
    import tomllib  # noqa: PLC0415 - few projects have such a file

    if len(data) > MAX_SETTINGS_BYTES or any(
        line.count(b".") > MAX_DOTS for line in data.split(b"\n")
    ):
        message = "too large or nested too deeply"
        raise ValueError(message)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None


def _below(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


_SHELL = {".envrc": None}
"""What direnv loads into the shells of a client."""
CLIENTS: Mapping[str, ProjectFiles] = {
    "claude": ProjectFiles(
        {
            ".claude/settings.json": json_keys,
            ".claude/settings.local.json": json_keys,
            ".mcp.json": json_keys,
            **_SHELL,
        },
        _below(".claude", "agents commands hooks plugins skills workflows"),
        words(
            "$schema attribution companyAnnouncements includeCoAuthoredBy language outputStyle "
            "prefersReducedMotion showTurnDuration spinnerTipsEnabled spinnerVerbs "
            "terminalProgressBarEnabled theme verbose"
        ),
    ),
    "codex": ProjectFiles(
        {
            ".codex/config.toml": toml_keys,
            ".codex/hooks.json": json_keys,
            ".agents/plugins/marketplace.json": None,
            **_SHELL,
        },
        (*_below(".codex", "agents hooks rules skills"), ".agents/skills"),
        words("file_opener hide_agent_reasoning show_raw_agent_reasoning tui"),
    ),
    "gemini": ProjectFiles(
        {
            ".gemini/settings.json": json_keys,
            ".gemini/.env": None,
            ".env": None,
            # What its sandbox is made from, and what is run in it first.
            ".gemini/sandbox.Dockerfile": None,
            ".gemini/sandbox.bashrc": None,
            **_SHELL,
        },
        (
            *_below(".gemini", "agents commands extensions hooks policies skills"),
            ".agents/skills",
        ),
        words("$schema general.preferredEditor general.vimMode ui"),
    ),
    "opencode": ProjectFiles(
        {
            "opencode.json": json_keys,
            "opencode.jsonc": json_keys,
            ".opencode/opencode.json": json_keys,
            ".opencode/opencode.jsonc": json_keys,
            ".opencode/package.json": None,
            ".opencode/.npmrc": None,
            **_SHELL,
        },
        (
            # It takes either number.
            *_below(".opencode", "agent command mode plugin skill tool"),
            *_below(".opencode", "agents commands modes plugins skills tools"),
            *(".claude/skills", ".agents/skills"),
        ),
        words("$schema keybinds layout theme tui username"),
    ),
}
"""Kind of agent -> what it reads. Executors of other packages are not known here."""


def files_for(kind: str, options: Mapping[str, Any]) -> ProjectFiles | None:
    """Return what an agent of *kind* with the *options* of its entry reads; None: nothing.

    claude without the sources ``project`` and ``local`` loads neither settings nor servers,
    skills, subagents and commands of a project.
    """
    sources = options.get("setting_sources") if kind == "claude" else None
    if isinstance(sources, list | tuple) and not {"project", "local"} & set(map(str, sources)):
        return None
    return CLIENTS.get(kind)
