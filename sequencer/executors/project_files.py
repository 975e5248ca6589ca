"""The files that each client reads from a project's folder, whatever its command line is.

A key takes effect unless it is listed as free. This module does not import the clients' modules:
a project whose agent is ``auto`` could start any of them, and loading all takes a while.

Observed with strace: claude 2.1.332, codex 0.169.0, opencode 1.18.33. From its documentation:
gemini 0.61.0. Not covered: instructions (CLAUDE.md, AGENTS.md, GEMINI.md, rules, output
styles), which are prompts, and the user's own folders (~/.claude, ~/.codex, …).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from sequencer.executors.protocol import split_words
from sequencer.store.strictjson import parse_object

MAX_SETTINGS_BYTES = 128 * 1024
"""A larger settings file is compared as a whole."""
MAX_DOTS = 100
"""Maximum dots in a line of TOML: the time to parse a dotted key grows with their square."""
Reader = Callable[[bytes], dict[str, Any]]
"""Returns the keys of a settings file; ValueError: the file is compared as a whole."""


class ProjectFiles(Struct, frozen=True):
    """Paths in the project's folder, and in the folders above it up to the repository's root."""

    files: Mapping[str, Reader | None]
    """Path -> reader; None: any change of the file matters."""
    folders: tuple[str, ...]
    """Any change of a file in these folders matters."""
    free: frozenset[str]
    """Keys that do not change what an agent may do, as ``key.below``."""


def json_keys(data: bytes) -> dict[str, Any]:
    """Return the keys of a strict JSON object.

    Raises:
        ValueError: it is not JSON, or has comments, a byte order mark or duplicate keys, which
            the client may read in another way.
    """
    return parse_object(data, MAX_SETTINGS_BYTES)


def toml_keys(data: bytes) -> dict[str, Any]:
    """Return the keys of a TOML document.

    Raises:
        ValueError: it is not TOML, too large, or nested so deeply that parsing would be slow.
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


def _join_folder(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


_SHELL = {".envrc": None}
"""direnv loads it into the shells of a client."""
CLIENTS: Mapping[str, ProjectFiles] = {
    "claude": ProjectFiles(
        {
            ".claude/settings.json": json_keys,
            ".claude/settings.local.json": json_keys,
            ".mcp.json": json_keys,
            **_SHELL,
        },
        _join_folder(".claude", "agents commands hooks plugins skills workflows"),
        split_words(
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
        (*_join_folder(".codex", "agents hooks rules skills"), ".agents/skills"),
        split_words("file_opener hide_agent_reasoning show_raw_agent_reasoning tui"),
    ),
    "gemini": ProjectFiles(
        {
            ".gemini/settings.json": json_keys,
            ".gemini/.env": None,
            ".env": None,
            # The image of its sandbox, and the script that runs there first.
            ".gemini/sandbox.Dockerfile": None,
            ".gemini/sandbox.bashrc": None,
            **_SHELL,
        },
        (
            *_join_folder(".gemini", "agents commands extensions hooks policies skills"),
            ".agents/skills",
        ),
        split_words("$schema general.preferredEditor general.vimMode ui"),
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
            # It reads folders with either the singular or the plural name.
            *_join_folder(".opencode", "agent command mode plugin skill tool"),
            *_join_folder(".opencode", "agents commands modes plugins skills tools"),
            *(".claude/skills", ".agents/skills"),
        ),
        split_words("$schema keybinds layout theme tui username"),
    ),
}
"""Kind of agent -> the files that it reads. Executors of other packages are not listed."""


def files_for(kind: str, options: Mapping[str, Any]) -> ProjectFiles | None:
    """Return the files that an agent of *kind* with *options* of its entry reads; None: none.

    Without the sources ``project`` and ``local``, claude loads no settings, servers, skills,
    subagents and commands of a project.
    """
    sources = options.get("setting_sources") if kind == "claude" else None
    if isinstance(sources, list | tuple) and not {"project", "local"} & set(map(str, sources)):
        return None
    return CLIENTS.get(kind)
