"""Works out what a delivery from GitHub or Linear asks for.

It takes GitHub's events ``issues`` and ``issue_comment``, and Linear's ``Issue``, ``Comment`` and
``AgentSessionEvent``. Nothing in them is trusted: senders and places are compared with the
project's lists, texts are passed on as texts, and a value of the wrong type is refused. Pure.

Not promised: that the listed person wrote a comment. A program with their key could have, so
whatever posts for a run needs a key of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeGuard

from msgspec import Struct

from sequencer.errors import UsageRefused
from sequencer.model.limits import parse_time
from sequencer.plugins.requests.issues import Fields
from sequencer.plugins.web.webhook_settings import TrackerHook

OWN_MARK = "<!-- sequencer:"
"""Is in each comment that a run posts: a run must not answer itself."""
_WORDS = {word: word for word in ("approve", "reject", "retry", "stop")}
_WORDS |= {"approved": "approve", "rejected": "reject"}
"""First line of a comment -> its decision."""

Document = Mapping[str, Any]


class Ask(StrEnum):
    """What a delivery asks for."""

    START = "start"
    ANSWER = "answer"
    """A comment: an answer or guidance."""
    STOP = "stop"


class TrackerEvent(Struct, frozen=True, kw_only=True):
    """What a delivery asks for, who asks, and when."""

    ask: Ask
    identifier: str
    """``acme/app#7``, ``ENG-42``."""
    places: tuple[str, ...]
    """Names of the repository or team."""
    who: tuple[str, ...]
    """Names of one person; the first one is recorded."""
    at: datetime
    """When it happened, by the tracker's clock."""
    text: str = ""
    url: str = ""
    id: str = ""
    """The id of a comment in Linear."""
    only_if_labeled: bool = False
    """A label was removed, but the event does not say which one: the stop applies only if a label
    started the run."""


class DeliveryIgnored(Exception):
    """The delivery asks for nothing here; the text says why."""


def read_github_event(kind: str, event: Fields, options: TrackerHook) -> TrackerEvent:
    """Return what GitHub's event *kind* asks for.

    Raises:
        DeliveryIgnored: it asks for nothing here.
    """
    if kind not in ("issues", "issue_comment"):
        raise DeliveryIgnored(f"events {kind[:40]!r} are not taken")
    action, issue, sender = (
        event.get_text("action"),
        event.get_section("issue"),
        event.get_section("sender"),
    )
    repository, number = event.get_section("repository").get_text("full_name"), issue.get("number")
    if not is_count(number) or not repository:
        raise DeliveryIgnored("it names no issue")
    fields: dict[str, Any] = {
        "identifier": f"{repository}#{number}",
        "places": (repository,),
        "who": _user(sender),
    }
    if kind == "issue_comment":
        comment = event.get_section("comment")
        if action != "created" or comment.get_section("user").get("login") != sender.get("login"):
            raise DeliveryIgnored("only new comments are taken")
        text = _extract_addressed_text(comment.get_text("body"), options)
        fields |= {"text": text, "url": comment.get_text("html_url")}
        return TrackerEvent(ask=Ask.ANSWER, at=_read_time(comment, "created_at"), **fields)
    if action in ("labeled", "unlabeled"):
        is_ours = is_any_known((event.get_section("label").get_text("name"),), options.labels)
    elif action in ("assigned", "unassigned"):
        is_ours = is_any_known(_user(event.get_section("assignee")), options.assignees)
    else:
        raise DeliveryIgnored(f"issues that are {action[:40]} are not taken")
    if not is_ours:
        raise DeliveryIgnored(f"this label or assignee starts no run ({action})")
    is_end = action.startswith("un")
    people = (name for user in issue.get_sections("assignees") for name in _user(user))
    labels = (label.get_text("name") for label in issue.get_sections("labels"))
    if is_end and (is_any_known(labels, options.labels) or is_any_known(people, options.assignees)):
        raise DeliveryIgnored("another label or assignee keeps the run going")
    ask = Ask.STOP if is_end else Ask.START
    return TrackerEvent(ask=ask, at=_read_time(issue, "updated_at"), **fields)


def read_linear_event(_kind: str, event: Fields, options: TrackerHook) -> TrackerEvent:
    """Return what Linear's event asks for.

    The kind from the header is ignored, because headers are not signed; the body has the type.

    Raises:
        DeliveryIgnored: it asks for nothing here.
    """
    kinds = {"Issue": _linear_issue, "Comment": _linear_comment, "AgentSessionEvent": _session}
    kind = event.get_text("type")
    if kind not in kinds:
        raise DeliveryIgnored(f"events {kind[:40]!r} are not taken")
    return kinds[kind](event, options)


def read_event(tracker: str, kind: str, document: Document, options: TrackerHook) -> TrackerEvent:
    """Return what the event *kind* of *tracker* asks for.

    Raises:
        DeliveryIgnored: it asks for nothing here, or one of its values has the wrong type.
    """
    reader = read_github_event if tracker == "github" else read_linear_event
    try:
        return reader(kind, Fields(document, "", "the delivery"), options)
    except UsageRefused as error:
        raise DeliveryIgnored(error.message) from None


def _linear_issue(event: Fields, options: TrackerHook) -> TrackerEvent:
    issue, old_fields, action = (
        event.get_section("data"),
        event.get_section("updatedFrom"),
        event.get("action"),
    )
    fields = _read_issue_fields(issue, event.get_section("actor")) | {
        "at": _read_time(event, "createdAt")
    }
    labels = [*issue.get_sections("labels")]
    is_labeled = is_any_known((label.get_text("name") for label in labels), options.labels)
    is_assigned = is_any_known(
        _names(issue.get_section("assignee"), "email", "id"), options.assignees
    )
    if action == "create":
        if is_labeled or is_assigned:
            return TrackerEvent(ask=Ask.START, **fields)
        raise DeliveryIgnored("none of its labels or assignees starts a run")
    if action != "update" or not old_fields.has_any("labelIds", "assigneeId"):
        raise DeliveryIgnored("neither its labels nor its assignee have changed")
    old_labels = old_fields.get("labelIds")
    new_labels = [
        label
        for label in labels
        if isinstance(old_labels, list) and label.get("id") not in old_labels
    ]
    has_our_label = is_any_known((label.get_text("name") for label in new_labels), options.labels)
    if has_our_label or (is_assigned and old_fields.has_any("assigneeId")):
        return TrackerEvent(ask=Ask.START, **fields)
    if is_labeled or is_assigned:
        raise DeliveryIgnored("another label or assignee keeps the run going")
    # Linear gives only the id of the previous assignee, so a listed email may be the same person.
    old_assignee = old_fields.get_text("assigneeId")
    may_be_ours = old_assignee and any("@" in name for name in options.assignees)
    is_unassigned = bool(may_be_ours) or is_any_known((old_assignee,), options.assignees)
    return TrackerEvent(ask=Ask.STOP, only_if_labeled=not is_unassigned, **fields)


def _linear_comment(event: Fields, options: TrackerHook) -> TrackerEvent:
    comment = event.get_section("data")
    if event.get("action") != "create" or comment.get("botActor"):
        raise DeliveryIgnored("only new comments of people are taken")
    fields = _read_issue_fields(
        comment.get_section("issue"), comment.get_section("user"), comment.get_text("userId")
    )
    fields |= {"id": comment.get_text("id"), "at": _read_time(comment, "createdAt")}
    fields |= {
        "text": _extract_addressed_text(comment.get_text("body"), options),
        "url": event.get_text("url"),
    }
    return TrackerEvent(ask=Ask.ANSWER, **fields)


def _session(event: Fields, _options: TrackerHook) -> TrackerEvent:
    """Return what a Linear agent session asks for: a person assigned an issue, or sent a prompt."""
    session, activity = event.get_section("agentSession"), event.get_section("agentActivity")
    issue, event_time = session.get_section("issue"), _read_time(event, "createdAt")
    if event.get("action") == "created":
        event_fields = _read_issue_fields(issue, session.get_section("creator"))
        return TrackerEvent(
            ask=Ask.START, at=event_time, url=session.get_text("url"), **event_fields
        )
    event_fields = _read_issue_fields(
        issue, activity.get_section("user"), activity.get_text("userId")
    )
    if activity.get("signal") == "stop":
        return TrackerEvent(ask=Ask.STOP, at=event_time, **event_fields)
    if event.get("action") != "prompted":
        raise DeliveryIgnored("only new prompts are taken")
    # The prompt is addressed to the agent, so it needs no mention.
    text = activity.get_section("content").get_text("body") or activity.get_text("body")
    return TrackerEvent(ask=Ask.ANSWER, at=event_time, text=_clean_comment(text), **event_fields)


def _read_issue_fields(issue: Fields, user: Fields, user_id: str = "") -> dict[str, Any]:
    team = issue.get_section("team")
    places = (team.get_text("key"), team.get_text("id") or issue.get_text("teamId"))
    identifier = issue.get_text("identifier")
    if not identifier:
        raise DeliveryIgnored("it names no issue")
    person = _names(user, "email", "id") or (user_id,)
    return {"identifier": identifier, "places": tuple(filter(None, places)), "who": person}


def _extract_addressed_text(text: str, options: TrackerHook) -> str:
    """Return the part of a comment that is for the run, without the mention.

    Raises:
        DeliveryIgnored: a run posted it, it is empty, or it does not start with the mention.
    """
    text = _clean_comment(text)
    if options.mention is None:
        return text
    head, rest = text[: len(options.mention)], text[len(options.mention) :]
    if head.casefold() != options.mention.casefold() or rest[:1].isalnum() or rest[:1] == "-":
        raise DeliveryIgnored(f"it does not start with {options.mention}")
    return rest.lstrip(" \t,:\n")


def _clean_comment(text: str) -> str:
    if OWN_MARK in text:
        raise DeliveryIgnored("a run posted it")
    lines = text.replace("\r\n", "\n").strip().split("\n")
    # A reply by mail quotes the comment it replies to.
    reply = "\n".join(line for line in lines if not line.lstrip().startswith(">")).strip()
    if not reply:
        raise DeliveryIgnored("the comment is empty")
    return reply


def parse_decision(text: str) -> tuple[str, str]:
    r"""Return the verb in the first line of *text*, or "", and the rest of the text.

    The line must be only that word, or the word, a colon and a note.

    >>> parse_decision("Approve!\nwell done"), parse_decision("approve: well done")
    (('approve', 'well done'), ('approve', 'well done'))
    >>> parse_decision("approve it only if the tests pass")
    ('', 'approve it only if the tests pass')
    """
    first_line, _, rest = text.partition("\n")
    word, colon, note = first_line.partition(":")
    verb = _WORDS.get(word.strip().lstrip("/").rstrip(".!").casefold(), "")
    if not verb:
        return "", text
    return verb, "\n".join(filter(None, (note.strip() if colon else "", rest.strip())))


def is_any_known(names: Collection[str] | Any, known: Collection[str]) -> bool:
    """Return whether one of *names* is in *known*, ignoring case.

    >>> is_any_known(("Ann",), ("ann",)), is_any_known(("",), ("ann",)), is_any_known((), ())
    (True, False, False)
    """
    folded = {name.casefold() for name in known}
    return any(name and name.casefold() in folded for name in names)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether *value* is a number that a tracker may use: from 1, in 64 bits.

    >>> is_count(7), is_count(True), is_count(-1), is_count(10**400)
    (True, False, False, False)
    """
    return type(value) is int and 0 < value < 2**63


def _names(person: Fields, *keys: str) -> tuple[str, ...]:
    """Return the names that a list may have for *person*; display names are left out."""
    values = (person.get(key) for key in keys)
    texts = (str(value) for value in values if isinstance(value, str) or is_count(value))
    # Lists are plain ASCII, and casefold turns a few other letters into ASCII ones.
    return tuple(text for text in texts if text and text.isascii())


def _user(user: Fields) -> tuple[str, ...]:
    """Return the names of a GitHub user; ids get a prefix, as a login may look like a number."""
    return (*_names(user, "login"), *(f"id:{number}" for number in _names(user, "id")))


def _read_time(fields: Fields, name: str) -> datetime:
    moment = parse_time(fields.get_text(name))
    if moment is None:
        raise DeliveryIgnored(f"{name} is not a time")
    return moment
