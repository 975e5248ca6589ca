"""``webhooks:`` in orchestration.yaml: who may start, answer and stop runs from a tracker.

Nobody may anything who is not listed. The secret of a signature is the name of a variable.

Not promised: that a name on GitHub stays with one person; whoever takes a name that was given up
has it. ``id:NUMBER`` is accepted too, and never changes hands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.request import Label
from sequencer.model.step import Name
from sequencer.plugins.posting.options import SecretName

Who = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
"""GitHub: a login, or ``id:`` and the number of a user. Linear: an address or the id of a user."""
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}/[A-Za-z0-9._-]{1,100}$")]
Team = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")]
Mention = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")]


LEAST_SECRET_CHARS = 16


class TrackerHook(Frozen):
    """What both trackers have."""

    secret_env: SecretName
    """Variable with the key of the signature."""
    people: tuple[Who, ...] = ()
    """Who may start, answer and stop, where nothing else is said."""
    may_start: tuple[Who, ...] | None = None
    """Instead of ``people``; the same for the next two."""
    may_answer: tuple[Who, ...] | None = None
    may_stop: tuple[Who, ...] | None = None
    labels: tuple[Label, ...] = ()
    """An issue that gets one of them is started."""
    assignees: tuple[Who, ...] = ()
    """An issue that is assigned to one of them is started."""
    mention: Mention | None = None
    """Only comments that begin so are meant for a run; None: every comment of a person."""
    procedure: Name | None = None
    """None: labels, or an agent that classifies the issue, choose."""

    def lack(self, environment: Mapping[str, str]) -> str | None:
        """Return why nothing that is signed is believed; None: the secret is in *environment*."""
        chars = len(environment.get(self.secret_env, ""))
        if not chars:
            return f"{self.secret_env} is not set"
        few = f"{self.secret_env} has {chars} characters, fewer than {LEAST_SECRET_CHARS}"
        return few if chars < LEAST_SECRET_CHARS else None


class GithubHook(TrackerHook):
    """``webhooks.github``; without repositories nothing is taken from there."""

    secret_env: SecretName = "GITHUB_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    """Variable with the key of the signature."""
    repositories: tuple[Repository, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return from where deliveries are taken."""
        return self.repositories


class LinearHook(TrackerHook):
    """``webhooks.linear``; without teams nothing is taken from there."""

    secret_env: SecretName = "LINEAR_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    """Variable with the key of the signature."""
    teams: tuple[Team, ...] = ()
    """Keys, as in ENG-42, or ids."""

    @property
    def places(self) -> tuple[str, ...]:
        """Return from where deliveries are taken."""
        return self.teams


AnyHook = GithubHook | LinearHook


class WebhookOptions(Frozen):
    """What trackers may do through the server of the pages."""

    github: GithubHook = GithubHook()
    linear: LinearHook = LinearHook()
    max_runs: int = Field(default=1, ge=1, le=64)
    """Runs that are worked on at the same time because of them."""

    def of(self, tracker: str) -> AnyHook:
        """Return what is taken from *tracker*."""
        return self.github if tracker == "github" else self.linear

    def taken(self) -> Iterator[tuple[str, AnyHook]]:
        """Yield the trackers from which something is taken, with their names."""
        for name, hook in (("github", self.github), ("linear", self.linear)):
            if hook.places:
                yield name, hook
