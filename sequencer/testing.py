"""For tests of your own projects, workflows and packages: a scratch project with scripted agents.

A `ScratchProject` is a real project in a folder that you give it. Use it as people do: through
commands, which are child processes, or as a library. A scripted agent gives the test's answers,
so no model is called and nothing is billed. Relies only on the public library and the commands.

Not promised: a clock that a test can move, and any isolation from other programs of this user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.engine.run import Run
from sequencer.project.project import Project, open_project, open_run

AGENT = "tester"
"""The name of the scripted agent of a `ScratchProject`."""
_TIMEOUT_S = 60.0


class CommandOutput(Struct, frozen=True):
    """What a command printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Return the JSON that the command printed.

        Raises:
            ValueError: it printed something else; the message has both outputs.
        """
        try:
            return json.loads(self.stdout)
        except ValueError as error:
            message = f"no JSON: {self.stdout!r}; on stderr: {self.stderr!r}"
            raise ValueError(message) from error


def scripted(*outcomes: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``agents:`` that answers with *outcomes*, in order, for each step.

    A text is a successful answer. A mapping has the keys of an outcome in `orchestration.yaml`:
    ``step``, ``step_index`` and ``attempt`` say when it applies; ``status``, ``output``,
    ``error``, ``delay_s`` and ``usage`` say what happens. The last outcome repeats.

    >>> scripted("a plan", {"status": "failed"})
    {'kind': 'scripted', 'outcomes': [{'output': 'a plan'}, {'status': 'failed'}]}
    """
    entries = [
        {"output": outcome} if isinstance(outcome, str) else dict(outcome) for outcome in outcomes
    ]
    return {"kind": "scripted", "outcomes": entries or [{"output": "done"}]}


class ScratchProject:
    """A project in *folder*, with prompts and the scripted agent `AGENT`."""

    def __init__(
        self,
        folder: Path,
        configuration: Mapping[str, Any] | None = None,
        *,
        outcomes: tuple[str | Mapping[str, Any], ...] = (),
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        """Write ``orchestration.yaml`` and the *prompts* (file name to text) into *folder*.

        Without *configuration*, the steps `supervisor` and `main` take turns. The agent follows
        *outcomes*, see `scripted`, unless *configuration* has agents of its own.
        """
        self.folder = folder
        defaults: dict[str, Any] = {"agent": AGENT, "agents": {AGENT: scripted(*outcomes)}}
        self._write(
            "orchestration.yaml", json.dumps(defaults | dict(configuration or {}), indent=2)
        )
        default_prompts = {
            f"{name}.md": f"Be the {name}.\n" for name in ("supervisor", "main", "reviewer")
        }
        for name, text in (default_prompts if prompts is None else prompts).items():
            self._write(f"prompts/{name}", text)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_command(
        self, *arguments: str, given: str = "", variables: Mapping[str, str] | None = None
    ) -> CommandOutput:
        """Run ``sequencer`` with *arguments* in the project, which it trusts, and wait for its end.

        *given* is its standard input. It gets the caller's environment without ``SEQUENCER_…``
        variables, plus *variables*.

        Raises:
            subprocess.TimeoutExpired: it ran for more than a minute and was killed.
        """
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("SEQUENCER_")
        }
        process = subprocess.run(  # noqa: S603 - this program
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=self.folder,
            env={
                **environment,
                "SEQUENCER_TRUST": str(self.folder),
                "NO_COLOR": "1",
                **(variables or {}),
            },
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        return CommandOutput(process.returncode, process.stdout, process.stderr)

    def open(self) -> Project:
        """Return the project, trusted by this program."""
        return open_project(self.folder, environment={}, trust=True)

    def run(self, name: str | None = None) -> Run:
        """Return the run called *name*; None is the default run."""
        return open_run(self.folder, name, environment={}, trust=True)

    def trace(self, run: str | None = None) -> list[str]:
        """Return the accepted facts of a run, oldest first, each as ``event step``.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     project = ScratchProject(Path(folder))
        ...     with project.run().turn() as turn:
        ...         turn.output = "a plan"
        ...     project.trace()
        ['initialised supervisor', 'claimed supervisor', 'succeeded supervisor']
        """
        return [
            f"{fact['event']} {fact.get('step') or ''}".rstrip() for fact in self.run(run).history()
        ]
