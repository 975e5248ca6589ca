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
        signature = stat_signature(self._settings.config_path)
        if signature == self._seen or signature is None:
            return self._limits, ""
        self._seen = signature
        try:
            new_limits = self._read()
        except (SequencerError, OSError) as error:
            return self._limits, f"the limits stay as they are: {error}"
        old_limits, self._limits = self._limits, new_limits
        changes = [
            f"limits.{name}: {_format_limit(getattr(old_limits, name))} -> "
            f"{_format_limit(getattr(new_limits, name))}"
            for name in RunLimits.model_fields
            if getattr(old_limits, name) != getattr(new_limits, name)
        ]
        return new_limits, "; ".join(changes)

    def _read(self) -> RunLimits:
        """Return the file's current limits; without trust, only the lowered ones.

        Raises:
            SequencerError: the file can't be read.
        """
        old_settings, config = self._settings, self._settings.config_path
        new_settings = load(old_settings.project_dir, config=config, env=dict(os.environ))
        if self._is_trusted or self._trust.with_settings(new_settings).refusal() is None:
            return new_settings.limits
        return old_settings.limits.replace(
            **_choose_lower_limits(self._limits, new_settings.limits)
        )


def _choose_lower_limits(old_limits: RunLimits, new_limits: RunLimits) -> Mapping[str, Any]:
    """Return the lower value of each limit, by name."""

    def most(limits: RunLimits, name: str) -> float:
        value = getattr(limits, name)
        return math.inf if value is None else value

    return {
        name: getattr(min(old_limits, new_limits, key=lambda limits: most(limits, name)), name)
        for name in RunLimits.model_fields
    }


def _format_limit(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
