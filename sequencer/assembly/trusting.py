"""Whether a project may act here: asked once, before anything of it is run.

The one wall before a project's hooks, its agents and the addresses that get its secrets.
Looking at a run never asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from shlex import quote

from sequencer.errors import NotTrusted
from sequencer.settings import trust
from sequencer.settings.settings import Settings
from sequencer.settings.trust import Acts, acts_of, fingerprint

Ask = Callable[[NotTrusted], bool]
"""Whether a person says yes to what the error lists."""


class Trust:
    """What a person has said about one project, and what of it would act."""

    def __init__(self, settings: Settings, ask: Ask | bool) -> None:
        """Ask *ask* where nothing is recorded; True: the calling program answers for it."""
        self._settings = settings
        self._ask = ask
        self._is_sure = False
        self._files: Mapping[str, Mapping[Path, str]] = {}
        self._flows: set[Path] = set()
        """Workflows that were asked for by their paths."""

    @property
    def key(self) -> str:
        """Return what the record of this project is about."""
        return trust.project_key(self._settings.project_dir, self._settings.config_path)

    @cached_property
    def acts(self) -> Acts:
        """Return what the project can do now."""
        settings = self._settings
        own, root = self._own_settings, settings.project_dir
        return acts_of(settings.written, root, own, self._flows)

    @cached_property
    def _own_settings(self) -> Mapping[str, str]:
        from sequencer.git.process import acting_settings  # noqa: PLC0415 - only who asks

        store = self._settings.store
        remote = store.remote if store.kind == "git" else None
        return acting_settings(self._settings.project_dir, remote)

    @property
    def git_settings(self) -> Mapping[str, str]:
        """Return which settings of the repository's own git may act on once it is trusted."""
        from sequencer.git.own_settings import EVERYTHING  # noqa: PLC0415 - only git needs it

        return EVERYTHING if self.is_vouched_for else self._own_settings

    @property
    def is_vouched_for(self) -> bool:
        """Return whether it is trusted whatever it does."""
        return self._ask is True or trust.is_vouched_for(self._settings.project_dir)

    def refusal(self) -> NotTrusted | None:
        """Return why nothing of it may run; None: it may.

        Raises:
            UnsafePath: the record can't be believed.
        """
        if self._is_sure or self.is_vouched_for:
            return None
        known = trust.read(self.key)
        if known is None:
            return NotTrusted(self.key, self.acts.described)
        changed = self.acts.beyond(known.acts)
        flow = " ".join(quote(os.path.relpath(path)) for path in self._flows)
        return NotTrusted(self.key, self.acts.described, changed, flow) if changed else None

    def ensure(self, *, may_ask: bool = True) -> None:
        """Return if the project may act.

        Raises:
            NotTrusted: nobody has said so, or it has changed since; nothing was run.
        """
        if self._is_sure:
            return
        refused = self.refusal()
        if refused is not None:
            if not may_ask or isinstance(self._ask, bool) or not self._ask(refused):
                raise refused
            self.keep()
        self._is_sure = True
        if not self.is_vouched_for:
            self._files = self.acts.files

    def add_flow(self, path: Path) -> None:
        """Ask about the workflow *path* as well: the tools that it grants, wherever it stands."""
        if path not in self._flows:
            self._flows.add(path)
            self._is_sure = False
            vars(self).pop("acts", None)

    def keep(self) -> None:
        """Record that a person has said yes to what the project can do now."""
        trust.keep(self.key, self.acts)

    def files_of(self, owner: str) -> Mapping[Path, str]:
        """Return the files that *owner* runs whose content was trusted, with fingerprints."""
        return self._files.get(owner, {})

    def ensure_files(self, owner: str, seen: dict[Path, tuple[int, ...]]) -> None:
        """Return if the files that *owner* runs are those that were trusted.

        *seen* has what they looked like the last time; only those that differ are read.

        Raises:
            NotTrusted: one has another content.
        """
        for path, trusted in self._files.get(owner, {}).items():
            try:
                facts = os.stat(path)  # noqa: PTH116 - before each attempt
            except OSError:
                continue  # who starts it says so
            looks = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            if seen.get(path) == looks:
                continue
            ensure_unchanged(path, trusted, owner)
            seen[path] = looks


def ensure_unchanged(path: Path, trusted: str, owner: str) -> None:
    """Return if *path* has the content with the fingerprint *trusted*.

    Raises:
        NotTrusted: somebody has changed it since.
    """
    real = Path(os.path.realpath(path))
    now = fingerprint(real)
    if trusted not in (now, f'leads to "{real}"'):
        line = f"{owner}, file {path}"
        raise NotTrusted(str(path), (), (f"- {line}: {trusted}", f"+ {line}: {now or 'is gone'}"))
