"""``webhooks:`` in orchestration.yaml: who may start, answer and stop runs from a tracker.

People who are not listed may do nothing. The settings name the environment variable that has the
signature's secret, never the secret itself.

Not promised: that a GitHub name stays with one person; another person can take a name that was
given up. ``id:NUMBER`` is accepted too, and never changes owners.
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
"""GitHub: a login, or ``id:`` and a user's number. Linear: a user's email address or id."""
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}/[A-Za-z0-9._-]{1,100}$")]
Team = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")]
Mention = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")]


MIN_SECRET_CHARS = 16


class TrackerHook(Frozen):
    """The settings that both trackers have."""

    secret_env: SecretName
    """Environment variable with the signature's secret."""
    people: tuple[Who, ...] = ()
    """Who may start, answer and stop runs, unless the next three lists say otherwise."""
    may_start: tuple[Who, ...] | None = None
    """Instead of ``people``; the same for the next two."""
    may_answer: tuple[Who, ...] | None = None
    may_stop: tuple[Who, ...] | None = None
    labels: tuple[Label, ...] = ()
    """An issue that gets one of these labels starts a run."""
    assignees: tuple[Who, ...] = ()
    """An issue that is assigned to one of these starts a run."""
    mention: Mention | None = None
    """Only comments that start with this are for a run; None: all comments by people are."""
    procedure: Name | None = None
    """None: the labels choose it, or an agent that classifies the issue."""

    def find_secret_problem(self, environment: Mapping[str, str]) -> str | None:
        """Return why no signature can be checked; None: *environment* has a usable secret."""
        chars = len(environment.get(self.secret_env, ""))
        if not chars:
            return f"{self.secret_env} is not set"
        problem = f"{self.secret_env} has {chars} characters, fewer than {MIN_SECRET_CHARS}"
        return problem if chars < MIN_SECRET_CHARS else None


class GithubHook(TrackerHook):
    """``webhooks.github``; without repositories, no deliveries are taken from GitHub."""

    secret_env: SecretName = "GITHUB_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    """Environment variable with the signature's secret."""
    repositories: tuple[Repository, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places whose deliveries are taken."""
        return self.repositories


class LinearHook(TrackerHook):
    """``webhooks.linear``; without teams, no deliveries are taken from Linear."""

    secret_env: SecretName = "LINEAR_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    """Environment variable with the signature's secret."""
    teams: tuple[Team, ...] = ()
    """Keys, as in ENG-42, or ids."""

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places whose deliveries are taken."""
        return self.teams


AnyHook = GithubHook | LinearHook


class WebhookOptions(Frozen):
    """What trackers may do through the web server."""

    github: GithubHook = GithubHook()
    linear: LinearHook = LinearHook()
    max_runs: int = Field(default=1, ge=1, le=64)
    """Maximum number of runs at work at the same time because of deliveries."""

    def get_hook(self, tracker: str) -> AnyHook:
        """Return the settings of *tracker*."""
        return self.github if tracker == "github" else self.linear

    def list_enabled_hooks(self) -> Iterator[tuple[str, AnyHook]]:
        """Yield (name, settings) for each tracker whose deliveries are taken."""
        for name, hook in (("github", self.github), ("linear", self.linear)):
            if hook.places:
                yield name, hook
