"""What the JSON of GitHub and Linear says of an issue or a pull request.

Read are the output of ``gh`` (issue view, pr view, api), GitHub's events about issues and
pull requests, Linear's events about issues, comments and agent sessions, and an issue as
Linear's API answers it. The shapes are those of gh's exporter, GitHub's REST schema and
Linear's GraphQL schema. Of gh, where a person has chosen the keys, those with content that
are not read are named; the others send dozens of addresses and dates.

Everything in there was written by people elsewhere: a value of the wrong type is refused
rather than skipped, because a label that is lost takes its gate with it. Not promised: that
the texts are harmless to whoever reads them. Pure.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import UsageRefused
from sequencer.files.textfile import is_branch_name, slug
from sequencer.frozen.fields import ValidationError
from sequencer.model.request import MAX_ITEMS, Request

EXPECTED = (
    "expected an issue: what 'gh issue view N --json title,body,labels,comments,assignees,"
    "number,url' or 'gh api repos/OWNER/REPO/issues/N' prints, GitHub's event about an issue or "
    "a pull request, or Linear's about an Issue, a Comment or an AgentSessionEvent"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""`gh` colors what it prints where it is told to; no text within JSON holds a bare escape."""
_BEGINS_LIKE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*(?:\{|\]\s*\Z))")
_GITHUB_URL = re.compile(r"https?://[^/\s]+/(?P<repository>[^/\s]+/[^/\s]+)/(?:issues|pull)/\d+")
_LINK = re.compile(r"https?://[!-~]{1,1900}")
_UPLOAD = re.compile(
    r"https://(?:github\.com/(?:user-attachments|[\w.-]+/[\w.-]+)/(?:assets|files)"
    r"|(?:private-)?user-images\.githubusercontent\.com|uploads\.linear\.app)/[^\s)\]>\"'`<]+"
)
"""Where both trackers keep what people drop into a text."""
_LABEL = re.compile(r"<label>([^<]*)</label>")
_PRIORITIES: Mapping[float, str] = {1: "Urgent", 2: "High", 3: "Medium", 4: "Low"}
"""Linear's numbers; 0 is none."""
_REVIEWED: Mapping[str, str] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "requested changes",
    "COMMENTED": "reviewed",
    "DISMISSED": "reviewed, and the review was dismissed",
}
"""What a person did by a review in each state; one that is PENDING nobody has sent."""
_PASSED = frozenset({"SUCCESS", "NEUTRAL", "SKIPPED"})
_FAILED = frozenset({"FAILURE", "ERROR"})
_READ_OF_GH = frozenset(
    {
        *("assignees", "baseRefName", "body", "comments", "labels", "latestReviews", "number"),
        *("reviewDecision", "reviews", "statusCheckRollup", "title", "url"),
    }
)
_FACTS_OF_GH = frozenset(
    {
        *("author", "autoMergeRequest", "baseRefOid", "closedAt", "createdAt", "fullDatabaseId"),
        *("headRefName", "headRefOid", "headRepository", "headRepositoryOwner", "id"),
        *("mergeCommit", "mergeStateStatus", "mergeable", "mergedAt", "mergedBy"),
        *("potentialMergeCommit", "reactionGroups", "reviewRequests", "state", "stateReason"),
        "updatedAt",
    }
)
"""What nobody has to be told about: it is about the page, and asks for no work."""
_LINE_CHARS = 300
MAX_NAME_CHARS, MAX_TITLE_CHARS = 40, 300
_MOST_KEYS, _KEY_CHARS = 15, 40
_HYPHENS = re.compile(r"-+")
_INVISIBLE = frozenset("\u115f\u1160\u17b4\u17b5")
"""Letters and marks that nobody sees, by which names would differ that look the same."""
_GONE = frozenset({"deleted", "remove"})
"""Actions after which there is nothing to work on."""
NO_LABELS = "it has no labels, and labels can choose the procedure; give them with --label"


class TrackerIssue(Struct, frozen=True, kw_only=True):
    """What was read; a text is empty where nothing was said."""

    title: str
    text: str
    labels: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    """Oldest first, each with its author."""
    attachments: tuple[str, ...] = ()
    """Links."""
    identifier: str = ""
    url: str = ""
    session: str = ""
    repository: str = ""
    base_branch: str = ""
    assignees: tuple[str, ...] = ()
    priority: str = ""
    lacks: tuple[str, ...] = ()
    """What a person should know about what was not there."""


def as_json(text: str) -> str | None:
    """Return *text* as a JSON reader takes it; None: it is not meant to be JSON.

    JSON that is cut or wrong is meant to be some.

    >>> as_json('{"title":'), as_json("[Bug] it {fails}"), as_json("{{name}} fails")
    ('{"title":', None, None)
    """
    plain = _COLOR.sub("", text)
    return plain if _BEGINS_LIKE_JSON.match(plain) else None


def issue_of(value: object, where: str) -> TrackerIssue:
    """Return the issue that *value*, a JSON document, is about; *where* is for messages.

    Raises:
        UsageRefused: it is another document, an event without anything to work on, or one of
            its values is not what GitHub and Linear send there.
    """
    if not isinstance(value, Mapping):
        count = f" of {len(value)}" if isinstance(value, list) else ""
        found = f"is a JSON {type(value).__name__}{count} instead of one issue"
        raise UsageRefused(found, where=where, hint=EXPECTED)
    issue = _read(Fields(value, "", where))
    if issue is None or not issue.title:
        keys = ", ".join(_shown(key) for key in list(value)[:_MOST_KEYS]) or "none"
        more = f" and {len(value) - _MOST_KEYS} more" if len(value) > _MOST_KEYS else ""
        found = f"is JSON, but not an issue in a known form; its keys: {keys}{more}"
        raise UsageRefused(found, where=where, hint=EXPECTED)
    return _bounded(issue)


def _read(top: Fields) -> TrackerIssue | None:
    """Return what *top* says; None: it has no known shape."""
    kind = top.get("type")
    if kind == "AgentSessionEvent":
        return _session(top)
    if kind in ("Issue", "Comment") and "data" in top:
        top.ensure_not_gone()
        data = top.section("data")
        return _linear(data, top) if kind == "Issue" else _linear_comment(data, top)
    if isinstance(top.get("data"), Mapping):
        answer = top.section("data")
        return _linear(answer.section("issue"), top) if "issue" in answer else None
    if "title" not in top:
        about = next((key for key in ("issue", "pull_request") if key in top), None)
        return None if about is None else _github_event(top, about)
    if isinstance(top.get("identifier"), str):
        return _linear(top, top)
    # Other trackers have labels too, and their texts are called something else.
    is_github = top.has_any("body") or (top.has_any("labels") and not top.has_any("description"))
    return _github(top, Fields({}, "", top.where)) if is_github else None


class Fields:
    """The values of one object, each of the type that it has to be; null is like not there."""

    def __init__(self, data: Mapping[str, Any], path: str, where: str) -> None:
        self._data = data
        self._path = path
        self.where = where

    def __contains__(self, name: str) -> bool:
        """Return whether *name* is there and not null."""
        return self._data.get(name) is not None

    def has_any(self, *names: str) -> bool:
        """Return whether one of *names* is there, be it null."""
        return any(name in self._data for name in names)

    def get(self, name: str) -> Any:
        """Return the value *name*, whatever it is."""
        return self._data.get(name)

    def filled(self) -> Iterator[str]:
        """Yield the names of texts, lists and objects that are not empty."""
        for name, value in self._data.items():
            if isinstance(value, (str, list, Mapping)) and value:
                yield name

    def text(self, name: str) -> str:
        """Return the text *name*; the next ones raise `UsageRefused` for another type, too."""
        value = self.get(name)
        if not isinstance(value, str | None):
            raise self.wrong(name, "text")
        # GitHub's form on the web sends the line ends of a browser.
        return (value or "").replace("\r\n", "\n")

    def line(self, name: str) -> str:
        """Return the text *name* as one line."""
        return _one_line(self.text(name))

    def link(self, name: str) -> str:
        """Return the text *name* if it is an address, else nothing."""
        found = self.text(name).strip()
        return found if _LINK.fullmatch(found) else ""

    def section(self, name: str) -> Fields:
        """Return the object *name*."""
        value = {} if self.get(name) is None else self.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self._path}{name}.", self.where)

    def sections(self, name: str, of_a_text: str = "") -> Iterator[Fields]:
        """Yield the objects of a list; a text in their place is its *of_a_text*."""
        value = self.get(name)
        if isinstance(value, Mapping):
            # Linear's API has lists so.
            value = value.get("nodes")
        if not isinstance(value, list | None):
            raise self.wrong(name, "a list")
        for number, item in enumerate(value or ()):
            one = {of_a_text: item} if of_a_text and isinstance(item, str) else item
            if not isinstance(one, Mapping):
                raise self.wrong(f"{name}.{number}", "an object")
            yield Fields(one, f"{self._path}{name}.{number}.", self.where)

    def names(self, name: str, key: str) -> tuple[str, ...]:
        """Return what the *key* of each object of a list says, once each; each has to have it."""
        found = []
        for one in self.sections(name, of_a_text=key):
            if key not in one:
                raise one.wrong(key, "text")
            found.append(one.line(key))
        return tuple(dict.fromkeys(filter(None, found)))

    def ensure_not_gone(self) -> None:
        """Return if there is something left to work on."""
        action = self.get("action")
        if isinstance(action, str) and action in _GONE:
            raise UsageRefused(
                f"is about something that is gone (action {action!r}), so there is nothing to do",
                where=self.where,
            )

    def wrong(self, name: str, wanted: str) -> UsageRefused:
        """Return the refusal of what *name* is; a path in it ends in an item of a list."""
        kind = type(self.get(name.partition(".")[0])).__name__
        said = f"has to be {wanted}, not {kind}" if "." not in name else f"has to be {wanted}"
        return UsageRefused(f"{self._path}{name} {said}", where=self.where, hint=EXPECTED)


def _github_event(event: Fields, about: str) -> TrackerIssue:
    event.ensure_not_gone()
    issue = _github(event.section(about), event.section("repository"))
    comment = event.section("comment")
    said = _said(comment.section("user").line("login"), comment.text("body"))
    review = _review(event.section("review"), "user")
    return replace(issue, comments=(*issue.comments, *said, *review))


def _github(issue: Fields, repository: Fields) -> TrackerIssue:
    """Return an issue or pull request, as ``gh`` or as REST tells it; *repository* may be empty."""
    url = issue.link("html_url") or issue.link("url")
    named = _GITHUB_URL.match(url)
    name = repository.line("full_name") or (named["repository"] if named else "")
    number = issue.get("number")
    is_number = type(number) is int and number > 0
    count = issue.get("comments")
    has_texts = type(count) is not int
    lacks = [] if issue.has_any("labels") else [NO_LABELS]
    if not has_texts and count:
        lacks.append(f"it has no text of its {count} comments; 'gh issue view N --json' has it")
    inline = issue.get("review_comments")
    if type(inline) is int and inline:
        lacks.append(
            f"it has no text of its {inline} review comments; 'gh pr view N --json' has it"
        )
    lacks += _left_out(issue)
    base = issue.text("baseRefName") or issue.section("base").text("ref")
    assignees = issue.names("assignees", "login")
    return TrackerIssue(
        title=issue.text("title").strip(),
        text=issue.text("body"),
        labels=issue.names("labels", "name"),
        comments=(*(_github_comments(issue) if has_texts else ()), *_state_of_pull(issue)),
        identifier=f"{name}#{number}" if is_number else "",
        url=url,
        repository=name,
        base_branch=_branch(base or repository.text("default_branch")),
        assignees=assignees or tuple(filter(None, (issue.section("assignee").line("login"),))),
        lacks=tuple(lacks),
    )


def _github_comments(issue: Fields) -> Iterator[str]:
    """Yield the comments and reviews in the order in which they were made, if dates tell it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for one in issue.sections("comments"):
        # What the maintainers have hidden, as spam or as off-topic, is nobody's request.
        if one.get("isMinimized") is not True:
            said = _said(one.section("author").line("login"), one.text("body"))
            found.append((one.text("createdAt"), said))
    # The latest ones are among all of them.
    reviews = issue.sections("reviews" if "reviews" in issue else "latestReviews")
    found += [(one.text("submittedAt"), _review(one, "author")) for one in reviews]
    if all(at for at, _ in found):
        found.sort(key=lambda one: one[0])
    for _, said in found:
        yield from said


def _review(review: Fields, person: str) -> tuple[str, ...]:
    """Return a review as it stands in a prompt: who says what of the work, and why."""
    state = review.line("state").upper()
    text, author = review.text("body").strip(), review.section(person).line("login")
    # Without a text it says something by its state only, or in the lines of the code.
    if state in ("", "PENDING") or not (text or state in ("APPROVED", "CHANGES_REQUESTED")):
        return ()
    said = f"{author or 'someone'} {_REVIEWED.get(state, f'reviewed ({state.lower()})')}"
    return (f"{said}:\n\n{text}" if text else f"{said}, without a text",)


def _state_of_pull(pull: Fields) -> Iterator[str]:
    """Yield what a pull request's reviews and checks have come to."""
    decision = pull.line("reviewDecision")
    if decision:
        yield f"The review decision is: {decision.replace('_', ' ').lower()}"
    failed = [line for one in pull.sections("statusCheckRollup") for line in _failed(one)]
    if failed:
        yield "\n".join(("These checks have failed:\n", *failed))


def _failed(check: Fields) -> Iterator[str]:
    """Yield a line about *check* if it has failed: a run of a check, or a status of a commit."""
    conclusion, state = check.line("conclusion").upper(), check.line("state").upper()
    if state in _FAILED or (conclusion and conclusion not in _PASSED):
        workflow = check.line("workflowName")
        name = check.line("name") or check.line("context") or "a check without a name"
        how = (conclusion or state).replace("_", " ").lower()
        link = check.link("detailsUrl") or check.link("targetUrl")
        about = " / ".join(filter(None, (workflow, name)))
        yield f"- {about}: {how}{f', {link}' if link else ''}"


def _left_out(issue: Fields) -> Iterator[str]:
    """Yield a sentence about what ``gh`` was asked for and nobody reads."""
    if issue.has_any("html_url", "node_id"):
        return  # REST sends everything
    unread = [name for name in issue.filled() if name not in _READ_OF_GH | _FACTS_OF_GH]
    if unread:
        names = ", ".join(map(_shown, unread[:_MOST_KEYS]))
        more = f" and {len(unread) - _MOST_KEYS} more" if len(unread) > _MOST_KEYS else ""
        yield f"not a part of the request: {names}{more}; --comment adds what matters"


def _linear(issue: Fields, event: Fields) -> TrackerIssue:
    number = issue.get("priority")
    by_number = _PRIORITIES.get(number, "") if type(number) in (int, float) else ""
    people = (issue.section("assignee").line(key) for key in ("name", "displayName"))
    comments = (
        _said(_author(one), one.text("body"))
        for one in issue.sections("comments", of_a_text="body")
    )
    return TrackerIssue(
        title=issue.text("title").strip(),
        text=issue.text("description"),
        labels=issue.names("labels", "name"),
        comments=tuple(text for said in comments for text in said),
        attachments=tuple(
            filter(None, (one.link("url") for one in issue.sections("attachments", "url")))
        ),
        identifier=issue.line("identifier"),
        url=issue.link("url") or event.link("url"),
        assignees=tuple(filter(None, people))[:1],
        priority="" if number == 0 else issue.line("priorityLabel") or by_number,
        lacks=() if issue.has_any("labels") else (NO_LABELS,),
    )


def _linear_comment(comment: Fields, event: Fields) -> TrackerIssue:
    if "issue" not in comment:
        raise UsageRefused("is a comment on something that is not an issue", where=event.where)
    issue = _linear(comment.section("issue"), Fields({}, "", event.where))
    return replace(issue, comments=_said(_author(comment), comment.text("body")))


def _session(event: Fields) -> TrackerIssue:
    """Return what an agent of Linear was asked for; each text is there once."""
    session, activity = event.section("agentSession"), event.section("agentActivity")
    if activity.get("signal") == "stop":
        raise UsageRefused("asks an agent to stop, so there is nothing to do", where=event.where)
    if "issue" not in session:
        raise UsageRefused("is an agent session without an issue", where=event.where)
    issue = _linear(session.section("issue"), Fields({}, "", event.where))
    issue = replace(issue, session=session.line("id"))
    said = [*((one, "body") for one in event.sections("previousComments"))]
    said += [(session.section("comment"), "body"), (activity.section("content"), "body")]
    texts = [text for one, key in said for text in _said(_author(one), one.text(key))]
    comments = tuple(dict.fromkeys((*issue.comments, *texts)))
    if issue.labels:
        return replace(issue, comments=comments)
    labels = _labels_of(event.text("promptContext"), session.section("issue"))
    return replace(issue, comments=comments, labels=labels, lacks=() if labels else issue.lacks)


def _labels_of(context: str, issue: Fields) -> tuple[str, ...]:
    """Return the labels of *issue* in *context*, the text that Linear makes for agents.

    It is the only place of a session's event that has them. Whatever people have written is
    cut out first, so that no description gives itself a label.
    """
    head = context
    for name in ("title", "description"):
        text = issue.text(name)
        for form in (text, html.escape(text, quote=False), html.escape(text)):
            head = head.replace(f"<{name}>{form}</{name}>", "", 1)
    head = head.partition("</issue>")[0]
    if re.search(r"<(title|description)>", head):
        # Something in there is not as it was written, so nobody knows where it ends.
        return ()
    own = re.sub(r"<parent-issue\b.*?</parent-issue>", "", head, flags=re.DOTALL)
    found = (_one_line(html.unescape(label)) for label in _LABEL.findall(own))
    return tuple(dict.fromkeys(filter(None, found)))


def _author(comment: Fields) -> str:
    user = comment.section("user")
    return user.line("name") or user.line("displayName")


def _said(author: str, body: str) -> tuple[str, ...]:
    """Return a comment as it stands in a prompt; nothing if it says nothing."""
    text = body.strip()
    if not text:
        return ()
    return (f"{author} wrote:\n\n{text}" if author else text,)


def _bounded(issue: TrackerIssue) -> TrackerIssue:
    """Return *issue* with as many comments as a request has room for, and all its links."""
    left_out = len(issue.comments) - MAX_ITEMS
    comments = issue.comments[-MAX_ITEMS:]
    lacks = issue.lacks
    if left_out > 0:
        lacks += (f"the oldest {left_out} of {len(issue.comments)} comments are left out",)
    uploads = (url for text in (issue.text, *comments) for url in _UPLOAD.findall(text))
    links = tuple(dict.fromkeys((*issue.attachments, *filter(_LINK.fullmatch, uploads))))
    return replace(issue, comments=comments, attachments=links[:MAX_ITEMS], lacks=lacks)


def _branch(name: str) -> str:
    """Return *name* if git takes it and people can see it; prompts put it into commands."""
    is_usable = is_branch_name(name) and name.isprintable() and len(name) <= _LINE_CHARS
    return name if is_usable else ""


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:_LINE_CHARS]


def _shown(key: str) -> str:
    return json.dumps(key[:_KEY_CHARS])[1:-1]


def as_request(
    issue: TrackerIssue,
    hide: Callable[[str], str],
    where: str,
    *,
    repository: str,
    base_branch: str,
    labels: tuple[str, ...] = (),
    comments: tuple[str, ...] = (),
    attachments: tuple[str, ...] = (),
) -> Request:
    """Return the request that *issue* is, without the secrets that *hide* knows.

    *repository* and *base_branch* are the project's, for an issue that names none.

    Raises:
        UsageRefused: a value can't be one of a request; *where* is for the message.
    """
    title = hide(issue.title)
    over = max(0, len(issue.comments) + len(comments) - MAX_ITEMS)
    # A title that was cut stands whole in the text.
    whole = title if len(title) > MAX_TITLE_CHARS else ""
    try:
        return Request(
            title=_shortened(title),
            text="\n".join(filter(None, (whole, hide(issue.text)))).strip(),
            labels=tuple(dict.fromkeys((*issue.labels, *map(str.strip, labels)))),
            comments=tuple(map(hide, (*issue.comments[over:], *comments))),
            attachments=(*map(hide, issue.attachments), *attachments),
            identifier=issue.identifier,
            url=hide(issue.url),
            session=issue.session,
            repository=issue.repository or _shortened(repository),
            base_branch=issue.base_branch or _shortened(base_branch),
            assignees=issue.assignees,
            priority=issue.priority,
        )
    except ValidationError as error:
        raise UsageRefused(error.messages()[0], where=where) from None


def _shortened(title: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in title)
    return plain if len(plain) <= MAX_TITLE_CHARS else f"{plain[: MAX_TITLE_CHARS - 1]}…"


def free_name(title: str, taken: Collection[str]) -> str:
    """Return a name for a run of a request called *title*, none of *taken*.

    Letters and digits of every script stay, with the marks that belong to them.

    >>> free_name("Debug: login timeout!", {"debug-login-timeout"})
    'debug-login-timeout-2'
    >>> free_name("Größe ändern 🚀", ()), free_name("🚀🚀", ())
    ('größe-ändern', 'request')
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", title).lower())
    base = _HYPHENS.sub("-", "".join(map(_in_name, plain, f" {plain}")))
    base = base.strip("-")[:MAX_NAME_CHARS].strip("-") or "request"
    known = {slug(name) for name in taken}
    number, name = 1, base
    while slug(name) in known:
        number += 1
        name = f"{base}-{number}"
    return name


def _in_name(character: str, before: str) -> str:
    """Return *character*, or a hyphen where it stands in no name; *before* is the one before it."""
    kind = unicodedata.category(character)
    # A mark changes the letter before it; what it changes an emoji into says nothing.
    is_mark = kind in ("Mn", "Mc") and unicodedata.category(before)[0] in "LMN"
    is_kept = kind[0] in "LN" or (is_mark and not "\ufe00" <= character <= "\ufe0f")
    return character if is_kept and character not in _INVISIBLE else "-"
