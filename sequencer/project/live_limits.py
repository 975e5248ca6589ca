"""The current limits of a project's runs, read again if the file changes while a process works.

A lowered limit counts immediately. A raised limit counts only if the changed file is trusted, so
an agent can't raise its own limits. An unreadable file changes nothing and causes one notice.

Not promised: other settings. A process keeps the settings that it started with.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from sequencer.errors import SequencerError
from sequencer.model.limits import RunLimits
from sequencer.project.settings import Settings, load, stat_signature
from sequencer.project.trusting import Trust


class LiveLimits:
    """The limits that one process uses; it reads the file again after a change."""

    def __init__(self, settings: Settings, trust: Trust, *, is_trusted: bool) -> None:
        """Start with *settings*; if *is_trusted*, raised limits need no trust."""
        self._settings, self._trust, self._is_trusted = settings, trust, is_trusted
        self._limits = settings.limits
        self._seen = settings.config_looks

    def __call__(self) -> tuple[RunLimits, str]:
        """Return the current limits, and a notice about a change (empty: no change)."""
        looks = stat_signature(self._settings.config_path)
        if looks == self._seen or looks is None:
            return self._limits, ""
        self._seen = looks
        try:
            current = self._read()
        except (SequencerError, OSError) as error:
            return self._limits, f"the limits stay as they are: {error}"
        before, self._limits = self._limits, current
        changed = [
            f"limits.{name}: {_format_limit(getattr(before, name))} -> "
            f"{_format_limit(getattr(current, name))}"
            for name in RunLimits.model_fields
            if getattr(before, name) != getattr(current, name)
        ]
        return current, "; ".join(changed)

    def _read(self) -> RunLimits:
        """Return the file's current limits; without trust, only the lowered ones.

        Raises:
            SequencerError: the file can't be read.
        """
        started, config = self._settings, self._settings.config_path
        now = load(started.project_dir, config=config, env=dict(os.environ))
        if self._is_trusted or self._trust.with_settings(now).refusal() is None:
            return now.limits
        return started.limits.replace(**_choose_lower_limits(self._limits, now.limits))


def _choose_lower_limits(one: RunLimits, other: RunLimits) -> Mapping[str, Any]:
    """Return the lower value of each limit, by name."""

    def most(limits: RunLimits, name: str) -> float:
        value = getattr(limits, name)
        return math.inf if value is None else value

    return {
        name: getattr(min(one, other, key=lambda limits: most(limits, name)), name)
        for name in RunLimits.model_fields
    }


def _format_limit(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
