"""What other packages add to the program: objects under the names of their entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = "sequencer.kinds"
"""The entry points that add kinds of workflows; each makes a `Line` of one."""
TREES = "sequencer.trees"
"""The entry points that see what has changed in a folder; each is an
`engine.tree_state.MakeTree`."""
_OURS: Mapping[tuple[str, str], str] = {
    (TREES, "git"): "sequencer.plugins.git.code.attempt_changes:tree_in_git",
}
"""What comes with this package, by group and name: where no metadata has to be read for it."""


def plugin(group: str, name: str) -> Any | None:
    """Return the object of the entry point *name* in *group*, or None if there is none.

    Raises:
        ConfigurationError: it can't be loaded.
    """
    if (own := _OURS.get((group, name))) is not None:
        from pkgutil import resolve_name  # noqa: PLC0415 - the idle tick has no use for it

        return resolve_name(own)
    found = next((entry for entry in _entries(group) if entry.name == name), None)
    if found is None:
        return None
    try:
        return found.load()
    except Exception as error:
        # Whatever somebody else's code raises; with --verbose its traceback is shown.
        raise ConfigurationError(
            f"the package that brings {name!r} can't be loaded: {type(error).__name__}: {error}",
            where=f"{group}: {found.value}",
            hint="install it again, or remove it",
        ) from error


def plugin_names(group: str) -> set[str]:
    """Return the names of the entry points in *group*."""
    return {entry.name for entry in _entries(group)}


def packages_may_add(group: str) -> bool:
    """Return whether an installed package may have entry points in *group*.

    This reads the files that importlib.metadata would read, without loading that module, which
    takes ten times longer. If a path is not a folder of packages, the answer is yes.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415 - the idle tick has no use for it

    finders = (one for one in sys.meta_path if one is not PathFinder)
    if any(hasattr(one, "find_distributions") for one in finders):
        return True
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - no Path for each name
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in names:
            if name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
                with suppress(OSError):
                    if group.encode() in Path(folder, name, "entry_points.txt").read_bytes():
                        return True
    return False


def _entries(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes long to load

    return entry_points(group=group)
