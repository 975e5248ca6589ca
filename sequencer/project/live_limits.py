"""The limits of a project's runs as they are in its file while a process works on one.

A limit that is lowered counts at once, whoever lowered it. One that is raised counts if what
the file says now is trusted, so no agent gives itself more. A file that can't be read changes
nothing; that is said once.

Not promised: other settings. A process keeps those that it started with.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from sequencer.errors import SequencerError
from sequencer.model.limits import RunLimits
from sequencer.project.settings import Settings, load, looks_of
from sequencer.project.trusting import Trust


class LiveLimits:
    """What one process knows of the limits in the file, read again where the file has changed."""

    def __init__(self, settings: Settings, trust: Trust, *, is_trusted: bool) -> None:
        """Start with *settings*; where all *is_trusted*, nothing is compared."""
        self._settings, self._trust, self._is_trusted = settings, trust, is_trusted
        self._limits = settings.limits
        self._seen = settings.config_looks

    def __call__(self) -> tuple[RunLimits, str]:
        """Return the limits that count now, and what a person should know of a change."""
        looks = looks_of(self._settings.config_path)
        if looks == self._seen or looks is None:
            return self._limits, ""
        self._seen = looks
        try:
            found = self._read()
        except (SequencerError, OSError) as error:
            return self._limits, f"the limits stay as they are: {error}"
        was, self._limits = self._limits, found
        changed = [
            f"limits.{name}: {_shown(getattr(was, name))} -> {_shown(getattr(found, name))}"
            for name in RunLimits.model_fields
            if getattr(was, name) != getattr(found, name)
        ]
        return found, "; ".join(changed)

    def _read(self) -> RunLimits:
        """Return the limits that the file sets now, as far as they may count.

        Raises:
            SequencerError: it can't be read, or raises a limit and is not trusted.
        """
        own, config = self._settings, self._settings.config_path
        now = load(own.project_dir, config=config, env=dict(os.environ))
        if self._is_trusted or self._trust.again(now).refusal() is None:
            return now.limits
        return own.limits.replace(**_lower(self._limits, now.limits))


def _lower(one: RunLimits, other: RunLimits) -> Mapping[str, Any]:
    """Return the lower value of each limit, by name."""

    def most(limits: RunLimits, name: str) -> float:
        value = getattr(limits, name)
        return math.inf if value is None else value

    return {
        name: getattr(min(one, other, key=lambda limits: most(limits, name)), name)
        for name in RunLimits.model_fields
    }


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
