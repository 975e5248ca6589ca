"""The protocol of a project's agents, which choose the executor of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step


class Agents(Protocol):
    """Chooses the executor of a step."""

    @property
    def has_fallback(self) -> bool:
        """Return whether any agent has a fallback; see `choose_fallback`."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: there is no such agent, it can't be built, or it does not
                support a field of the step.
        """

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        """Choose like `choose`, but only an agent whose program is installed.

        If it is missing, another agent may replace it; the third value says why. Each program is
        looked up only once, so that the check costs nothing in later steps.

        Raises:
            AgentMissing: its program or its key is missing.
        """

    def choose_fallback(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return the name and executor of the fallback of *agent* for *step*; None: it has none.

        Until *not_before* (ISO 8601, UTC), `choose_installed` does not choose *agent* again if
        another agent can replace it.
        """

    def list_unfit_fallbacks(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return the fallbacks of *agent* that can't perform *step*, each with the reason."""

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Check that *agent* may work in *folder*, which is not the project's.

        Raises:
            NotTrusted: there, it would run files that are not the project's, or its client would
                read different settings.
        """

    def warm_up(self) -> None:
        """Prepare for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents can still be used."""
