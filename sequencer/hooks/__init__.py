"""A project's own code at seven points of a run: found, checked, and called with pluggy.

`load_hooks` returns what the engine calls (`engine.hooking.Hooks`). Files come in the order
in which orchestration.yaml lists them, then installed packages by the names of their entry
points. Nothing of pluggy is imported for a project without hooks.

Not promised: a sandbox. A hook is code of the project and may do what the program may do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sequencer.engine.hooking import Hooks, NoHooks

GROUP = "sequencer.hooks"
"""Entry points of this group are modules or objects that have hooks."""


def load_hooks(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str] | None = None
) -> Hooks:
    """Return the hooks of *files*, relative to the folder *project*, and of installed packages.

    *trusted* has the fingerprints of files that have to be as they were.

    Raises:
        NotTrusted: a file has another fingerprint; it was not run.
        ConfigurationError: a file is missing, leaves the project or can't be loaded, or has
            something that looks like a hook and is none; the file and its line are named.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - not for looking at a run

    entries = entry_points(group=GROUP)
    if not files and not entries:
        return NoHooks()
    from sequencer.hooks.calling import plugged  # noqa: PLC0415 - pluggy only if needed

    return plugged(files, project, trusted or {}, entries)
