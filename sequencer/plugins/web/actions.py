"""Does what the pages' buttons ask for, with the same library calls as the command line.

Each form has the token of the gate or question that its page showed, so that a page that is out
of date can't decide anything that its reader has not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from sequencer.cli.views.runs import decider_name
from sequencer.errors import SequencerError, UnknownName, UsageRefused
from sequencer.model.commands import (
    Adopt,
    AnswerQuestion,
    Approve,
    Feedback,
    Pause,
    Reject,
    Resume,
    RetryNow,
    RunCommand,
    Stop,
    Tell,
)
from sequencer.model.head import Head
from sequencer.plugins.posting.section import get_activity_options
from sequencer.plugins.web.pages import parse_number
from sequencer.plugins.web.site import Site
from sequencer.project.project import Project

Form = Mapping[str, str]


def _read_token(form: Form) -> int:
    if not (token := parse_number(form.get("token"))):
        raise UsageRefused("the form does not say which question it is about")
    return token


def _read_text(form: Form) -> str:
    return form.get("text", "").strip()


def make_command(word: str, text: str, token: int, node: str = "") -> RunCommand:
    """Return the command for the decision *word* on the gate or question with *token*.

    approve and reject may have a *text*; feedback and answer need one. answer also needs a *node*.
    """
    if word in ("approve", "reject"):
        return (Approve if word == "approve" else Reject)(text or None, token)
    return Feedback(text, token) if word == "feedback" else AnswerQuestion(node, text, token)


def _make_command_builder(word: str) -> Callable[[Form], RunCommand]:
    def of(form: Form) -> RunCommand:
        text = _read_text(form)
        if word == "answer":
            text = form.get("value") or text
        return make_command(word, text, _read_token(form), form.get("node", ""))

    return of


COMMANDS: Mapping[str, Callable[[Form], RunCommand]] = {
    **{word: _make_command_builder(word) for word in ("approve", "reject", "feedback", "answer")},
    "pause": lambda _: Pause(),
    "resume": lambda _: Resume(),
    "stop": lambda form: Stop(form.get("text") or None),
    "tell": lambda form: Tell(_read_text(form), form.get("node") or None),
    "adopt": lambda _: Adopt(),
    "retry": lambda form: RetryNow(form.get("node") or None),
}
"""Verb of a form -> its command."""
_POSTED = (Approve, Reject, Feedback, Stop)
"""Posted to the activity sinks at once, as the command line does."""
_CONTINUES = (Approve, Feedback, AnswerQuestion, Resume, RetryNow)
"""Commands after which the run can continue."""


def perform_action(site: Site, form: Form, project: str, run: str, verb: str) -> None:
    """Do *verb* with the values of *form*; *project* and *run* are addresses.

    Raises:
        UnknownName: there is no such verb, project or run.
        NotTrusted: no person has trusted the project on this machine.
        SequencerError: the run refuses it; nothing was changed.
    """
    if verb not in COMMANDS:
        raise UnknownName("change", verb, COMMANDS)
    command = COMMANDS[verb](form)
    with site.lock:
        site_project = site.project(project)
        name = site_project.row(run).run.name
    head = decide(site_project.open_for_change(), name, command, decider_name())
    with site.lock:
        site_project.answered[name] = head.revision if isinstance(command, _CONTINUES) else 0
    site_project.refresh_runs()


def decide(project: Project, run: str | None, command: RunCommand, by: str) -> Head:
    """Do *command* in the run called *run* in the name of *by*; return the new head.

    Raises: see `perform_action`.
    """
    head = project.run(run).do(command, by=by).head
    if isinstance(command, _POSTED) and get_activity_options(project.settings).sinks:
        threading.Thread(target=_deliver, args=(project, run), daemon=True).start()
    return head


def _deliver(project: Project, run: str | None) -> None:
    """Post to the sinks; what a sink does not take waits, and the pages show it."""
    posting = project.posting
    try:
        if posting is not None:
            posting.deliver(run, lambda _: None)
    except SequencerError:
        return
