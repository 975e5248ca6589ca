"""The folder in which all agents of a run work, if it is not the project's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.engine.attempt import Attempt
from sequencer.engine.tree_state import KeptTree
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Head


class RunPlace(Protocol):
    """The folder in which all agents of a run work, if it is not the project's folder."""

    @property
    def cwd(self) -> Path:
        """Return the agents' folder, once the work has begun."""

    def begin(self, head: Head, stop: Cancellation) -> None:
        """Have the place there, before a step of the run of *head* is claimed.

        Raises:
            WorkTreeRefused: it can't be had, or a command that sets it up has failed.
            Interrupted: *stop* came first.
        """

    def ready(self) -> None:
        """Return if the place is still one to work in, before an attempt is claimed.

        Raises:
            WorkTreeRefused: it is another project's, or nobody can say whose.
        """

    def keep(self, attempt: Attempt) -> KeptTree | None:
        """Keep the files as they are before *attempt*, whose log gets what is said of it.

        None: there are no files to keep.
        """

    def end(self, head: Head) -> None:
        """Bring what was done there to the project's folder: the run of *head* is complete.

        Raises:
            WorkTreeRefused: it is kept instead, as the message says.
        """
