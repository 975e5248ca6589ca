"""Reads an issue or a pull request from the JSON of GitHub and Linear. Pure.

It reads the output of ``gh`` (issue view, pr view, api), GitHub's events about issues and pull
requests, Linear's events about issues, comments and agent sessions, and issues from Linear's API.
The shapes follow gh's exporter, GitHub's REST schema and Linear's GraphQL schema. With gh, a
person chooses the keys, so unread keys with content are reported; the other sources send dozens
of addresses and dates.

All content is untrusted. A value of the wrong type is refused, not skipped: losing a label would
also lose its gate. Not promised: that the texts are harmless for an agent that reads them.
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
"""`gh` can print colors; a text in JSON never contains a bare escape character."""
_BEGINS_LIKE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*(?:\{|\]\s*\Z))")
_GITHUB_URL = re.compile(r"https?://[^/\s]+/(?P<repository>[^/\s]+/[^/\s]+)/(?:issues|pull)/\d+")
_LINK = re.compile(r"https?://[!-~]{1,1900}")
_UPLOAD = re.compile(
    r"https://(?:github\.com/(?:user-attachments|[\w.-]+/[\w.-]+)/(?:assets|files)"
    r"|(?:private-)?user-images\.githubusercontent\.com|uploads\.linear\.app)/[^\s)\]>\"'`<]+"
)
"""The addresses of files that people drop into a text, in both trackers."""
_LABEL = re.compile(r"<label>([^<]*)</label>")
_PRIORITIES: Mapping[float, str] = {1: "Urgent", 2: "High", 3: "Medium", 4: "Low"}
"""Linear's numbers; 0 means no priority."""
_REVIEWED: Mapping[str, str] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "requested changes",
    "COMMENTED": "reviewed",
    "DISMISSED": "reviewed, and the review was dismissed",
}
"""State of a review -> what the person did; a PENDING review was not sent yet."""
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
"""Keys about the page itself; they ask for no work, so ignoring them needs no notice."""
_LINE_CHARS = 300
MAX_NAME_CHARS, MAX_TITLE_CHARS = 40, 300
_MAX_KEYS, _KEY_CHARS = 15, 40
_HYPHENS = re.compile(r"-+")
_INVISIBLE = frozenset("\u115f\u1160\u17b4\u17b5")
"""Invisible letters and marks: names that differ only by them would look the same."""
_GONE = frozenset({"deleted", "remove"})
"""Actions that leave no work to do."""
NO_LABELS = "it has no labels, and labels can choose the procedure; give them with --label"


class TrackerIssue(Struct, frozen=True, kw_only=True):
    """An issue from a tracker; a missing text is empty."""

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
    """Notices about missing parts, for people."""


def find_json(text: str) -> str | None:
    """Return *text* without colors if it looks like JSON, even cut or invalid JSON, or None.

    >>> find_json('{"title":'), find_json("[Bug] it {fails}"), find_json("{{name}} fails")
    ('{"title":', None, None)
    """
    plain_text = _COLOR.sub("", text)
    return plain_text if _BEGINS_LIKE_JSON.match(plain_text) else None


def parse_issue(value: object, where: str) -> TrackerIssue:
    """Return the issue in *value*, a JSON document; *where* is for messages.

    Raises:
        UsageRefused: it is another document, an event without work to do, or has a value of a
            type that GitHub and Linear don't send.
    """
    if not isinstance(value, Mapping):
        count = f" of {len(value)}" if isinstance(value, list) else ""
        problem = f"is a JSON {type(value).__name__}{count} instead of one issue"
        raise UsageRefused(problem, where=where, hint=EXPECTED)
    issue = _read_issue(Fields(value, "", where))
    if issue is None or not issue.title:
        keys = ", ".join(_format_key(key) for key in list(value)[:_MAX_KEYS]) or "none"
        suffix = f" and {len(value) - _MAX_KEYS} more" if len(value) > _MAX_KEYS else ""
        problem = f"is JSON, but not an issue in a known form; its keys: {keys}{suffix}"
        raise UsageRefused(problem, where=where, hint=EXPECTED)
    return _limit_items(issue)


def _read_issue(top: Fields) -> TrackerIssue | None:
    """Return the issue in *top*; None: *top* has no known form.

    The forms are events and answers of Linear's API, an issue of either tracker, and an event of
    GitHub.
    """
    kind = top.get("type")
    if kind == "AgentSessionEvent":
        return _parse_linear_session(top)
    if kind in ("Issue", "Comment") and "data" in top:
        top.ensure_not_gone()
        data = top.get_section("data")
        return (
            _parse_linear_issue(data, top) if kind == "Issue" else _parse_linear_comment(data, top)
        )
    if isinstance(top.get("data"), Mapping):
        # The answer to a GraphQL query.
        answer = top.get_section("data")
        return _parse_linear_issue(answer.get_section("issue"), top) if "issue" in answer else None
    if "title" not in top:
        section_name = next((key for key in ("issue", "pull_request") if key in top), None)
        return None if section_name is None else _parse_github_event(top, section_name)
    if isinstance(top.get("identifier"), str):
        return _parse_linear_issue(top, top)
    # Other trackers also have labels, but other names for the text.
    is_github = top.has_any("body") or (top.has_any("labels") and not top.has_any("description"))
    return _parse_github_issue(top, Fields({}, "", top.where)) if is_github else None


class Fields:
    """Reads the values of one JSON object and checks their types; null counts as missing."""

    def __init__(self, data: Mapping[str, Any], path: str, where: str) -> None:
        self._data = data
        self._path = path
        self.where = where

    def __contains__(self, name: str) -> bool:
        """Return whether *name* exists and is not null."""
        return self._data.get(name) is not None

    def has_any(self, *names: str) -> bool:
        """Return whether one of *names* exists, even if it is null."""
        return any(name in self._data for name in names)

    def get(self, name: str) -> Any:
        """Return the value *name*, of any type."""
        return self._data.get(name)

    def filled_names(self) -> Iterator[str]:
        """Yield the names of texts, lists and objects that are not empty."""
        for name, value in self._data.items():
            if isinstance(value, (str, list, Mapping)) and value:
                yield name

    def get_text(self, name: str) -> str:
        """Return the text *name*; this and the next methods refuse values of another type."""
        value = self.get(name)
        if not isinstance(value, str | None):
            raise self.make_type_refusal(name, "text")
        # GitHub's web form sends a browser's line ends.
        return (value or "").replace("\r\n", "\n")

    def get_line(self, name: str) -> str:
        """Return the text *name* as one line."""
        return _one_line(self.get_text(name))

    def get_link(self, name: str) -> str:
        """Return the text *name* if it is an address, else an empty text."""
        address = self.get_text(name).strip()
        return address if _LINK.fullmatch(address) else ""

    def get_section(self, name: str) -> Fields:
        """Return the object *name*."""
        value = {} if self.get(name) is None else self.get(name)
        if not isinstance(value, Mapping):
            raise self.make_type_refusal(name, "an object")
        return Fields(value, f"{self._path}{name}.", self.where)

    def get_sections(self, name: str, of_a_text: str = "") -> Iterator[Fields]:
        """Yield the objects of a list; an item that is a text becomes {*of_a_text*: item}."""
        value = self.get(name)
        if isinstance(value, Mapping):
            # Linear's API wraps lists this way.
            value = value.get("nodes")
        if not isinstance(value, list | None):
            raise self.make_type_refusal(name, "a list")
        for number, item in enumerate(value or ()):
            entry = {of_a_text: item} if of_a_text and isinstance(item, str) else item
            if not isinstance(entry, Mapping):
                raise self.make_type_refusal(f"{name}.{number}", "an object")
            yield Fields(entry, f"{self._path}{name}.{number}.", self.where)

    def get_names(self, name: str, key: str) -> tuple[str, ...]:
        """Return the *key* of each object of a list, without repetitions; every object needs it."""
        names = []
        for entry in self.get_sections(name, of_a_text=key):
            if key not in entry:
                raise entry.make_type_refusal(key, "text")
            names.append(entry.get_line(key))
        return tuple(dict.fromkeys(filter(None, names)))

    def ensure_not_gone(self) -> None:
        """Check that the issue still exists."""
        action = self.get("action")
        if isinstance(action, str) and action in _GONE:
            raise UsageRefused(
                f"is about something that is gone (action {action!r}), so there is nothing to do",
                where=self.where,
            )

    def make_type_refusal(self, name: str, wanted: str) -> UsageRefused:
        """Return the error for the type of *name*, a key or the path of a list's item."""
        kind = type(self.get(name.partition(".")[0])).__name__
        text = f"has to be {wanted}, not {kind}" if "." not in name else f"has to be {wanted}"
        return UsageRefused(f"{self._path}{name} {text}", where=self.where, hint=EXPECTED)


def _parse_github_event(event: Fields, section_name: str) -> TrackerIssue:
    event.ensure_not_gone()
    issue = _parse_github_issue(event.get_section(section_name), event.get_section("repository"))
    comment = event.get_section("comment")
    event_comments = _format_comment(
        comment.get_section("user").get_line("login"), comment.get_text("body")
    )
    review = _format_review(event.get_section("review"), "user")
    return replace(issue, comments=(*issue.comments, *event_comments, *review))


def _parse_github_issue(issue: Fields, repository: Fields) -> TrackerIssue:
    """Return an issue or pull request from ``gh`` or REST; *repository* may be empty."""
    url = issue.get_link("html_url") or issue.get_link("url")
    in_url = _GITHUB_URL.match(url)
    name = repository.get_line("full_name") or (in_url["repository"] if in_url else "")
    number = issue.get("number")
    is_number = type(number) is int and number > 0
    count = issue.get("comments")
    has_texts = type(count) is not int
    lacks = [] if issue.has_any("labels") else [NO_LABELS]
    if not has_texts and count:
        lacks.append(f"it has no text of its {count} comments; 'gh issue view N --json' has it")
    inline_count = issue.get("review_comments")
    if type(inline_count) is int and inline_count:
        lacks.append(
            f"it has no text of its {inline_count} review comments; 'gh pr view N --json' has it"
        )
    lacks += _describe_ignored_keys(issue)
    base = issue.get_text("baseRefName") or issue.get_section("base").get_text("ref")
    assignees = issue.get_names("assignees", "login")
    return TrackerIssue(
        title=issue.get_text("title").strip(),
        text=issue.get_text("body"),
        labels=issue.get_names("labels", "name"),
        comments=(
            *(_iter_github_comments(issue) if has_texts else ()),
            *_describe_pull_state(issue),
        ),
        identifier=f"{name}#{number}" if is_number else "",
        url=url,
        repository=name,
        base_branch=_safe_branch(base or repository.get_text("default_branch")),
        assignees=assignees
        or tuple(filter(None, (issue.get_section("assignee").get_line("login"),))),
        lacks=tuple(lacks),
    )


def _iter_github_comments(issue: Fields) -> Iterator[str]:
    """Yield the comments and reviews, in the order of their dates if all have one."""
    dated_texts: list[tuple[str, tuple[str, ...]]] = []
    for comment in issue.get_sections("comments"):
        # Skip comments that maintainers have hidden as spam or off-topic.
        if comment.get("isMinimized") is not True:
            texts = _format_comment(
                comment.get_section("author").get_line("login"), comment.get_text("body")
            )
            dated_texts.append((comment.get_text("createdAt"), texts))
    # "reviews" also has the reviews in "latestReviews".
    reviews = issue.get_sections("reviews" if "reviews" in issue else "latestReviews")
    dated_texts += [
        (review.get_text("submittedAt"), _format_review(review, "author")) for review in reviews
    ]
    if all(date for date, _ in dated_texts):
        dated_texts.sort(key=lambda item: item[0])
    for _, texts in dated_texts:
        yield from texts


def _format_review(review: Fields, person: str) -> tuple[str, ...]:
    """Return a review in the form for a prompt: the author, the verdict, and the text."""
    state = review.get_line("state").upper()
    text, author = review.get_text("body").strip(), review.get_section(person).get_line("login")
    # Without a text, only an approval or a request for changes has a meaning.
    if state in ("", "PENDING") or not (text or state in ("APPROVED", "CHANGES_REQUESTED")):
        return ()
    verdict = f"{author or 'someone'} {_REVIEWED.get(state, f'reviewed ({state.lower()})')}"
    return (f"{verdict}:\n\n{text}" if text else f"{verdict}, without a text",)


def _describe_pull_state(pull: Fields) -> Iterator[str]:
    """Yield the review decision and the failed checks of a pull request."""
    decision = pull.get_line("reviewDecision")
    if decision:
        yield f"The review decision is: {decision.replace('_', ' ').lower()}"
    failed_checks = [
        line
        for check in pull.get_sections("statusCheckRollup")
        for line in _describe_failed_check(check)
    ]
    if failed_checks:
        yield "\n".join(("These checks have failed:\n", *failed_checks))


def _describe_failed_check(check: Fields) -> Iterator[str]:
    """Yield a line about *check*, a check run or a commit status, if it has failed."""
    conclusion, state = check.get_line("conclusion").upper(), check.get_line("state").upper()
    if state in _FAILED or (conclusion and conclusion not in _PASSED):
        workflow = check.get_line("workflowName")
        name = check.get_line("name") or check.get_line("context") or "a check without a name"
        state_text = (conclusion or state).replace("_", " ").lower()
        link = check.get_link("detailsUrl") or check.get_link("targetUrl")
        title = " / ".join(filter(None, (workflow, name)))
        yield f"- {title}: {state_text}{f', {link}' if link else ''}"


def _describe_ignored_keys(issue: Fields) -> Iterator[str]:
    """Yield a sentence about keys that ``gh`` was asked for and that this module ignores."""
    if issue.has_any("html_url", "node_id"):
        return  # REST sends everything
    ignored_names = [
        name for name in issue.filled_names() if name not in _READ_OF_GH | _FACTS_OF_GH
    ]
    if ignored_names:
        names = ", ".join(map(_format_key, ignored_names[:_MAX_KEYS]))
        suffix = (
            f" and {len(ignored_names) - _MAX_KEYS} more" if len(ignored_names) > _MAX_KEYS else ""
        )
        yield f"not a part of the request: {names}{suffix}; --comment adds what matters"


def _parse_linear_issue(issue: Fields, event: Fields) -> TrackerIssue:
    number = issue.get("priority")
    by_number = _PRIORITIES.get(number, "") if type(number) in (int, float) else ""
    people = (issue.get_section("assignee").get_line(key) for key in ("name", "displayName"))
    comments = (
        _format_comment(_author(comment), comment.get_text("body"))
        for comment in issue.get_sections("comments", of_a_text="body")
    )
    return TrackerIssue(
        title=issue.get_text("title").strip(),
        text=issue.get_text("description"),
        labels=issue.get_names("labels", "name"),
        comments=tuple(text for texts in comments for text in texts),
        attachments=tuple(
            filter(
                None, (item.get_link("url") for item in issue.get_sections("attachments", "url"))
            )
        ),
        identifier=issue.get_line("identifier"),
        url=issue.get_link("url") or event.get_link("url"),
        assignees=tuple(filter(None, people))[:1],
        priority="" if number == 0 else issue.get_line("priorityLabel") or by_number,
        lacks=() if issue.has_any("labels") else (NO_LABELS,),
    )


def _parse_linear_comment(comment: Fields, event: Fields) -> TrackerIssue:
    if "issue" not in comment:
        raise UsageRefused("is a comment on something that is not an issue", where=event.where)
    issue = _parse_linear_issue(comment.get_section("issue"), Fields({}, "", event.where))
    return replace(issue, comments=_format_comment(_author(comment), comment.get_text("body")))


def _parse_linear_session(event: Fields) -> TrackerIssue:
    """Return the issue of an agent session in Linear; each text is included once."""
    session, activity = event.get_section("agentSession"), event.get_section("agentActivity")
    if activity.get("signal") == "stop":
        raise UsageRefused("asks an agent to stop, so there is nothing to do", where=event.where)
    if "issue" not in session:
        raise UsageRefused("is an agent session without an issue", where=event.where)
    issue = _parse_linear_issue(session.get_section("issue"), Fields({}, "", event.where))
    issue = replace(issue, session=session.get_line("id"))
    sources = [*event.get_sections("previousComments")]
    sources += [session.get_section("comment"), activity.get_section("content")]
    texts = [
        text
        for source in sources
        for text in _format_comment(_author(source), source.get_text("body"))
    ]
    comments = tuple(dict.fromkeys((*issue.comments, *texts)))
    if issue.labels:
        return replace(issue, comments=comments)
    labels = _find_labels(event.get_text("promptContext"), session.get_section("issue"))
    return replace(issue, comments=comments, labels=labels, lacks=() if labels else issue.lacks)


def _find_labels(context: str, issue: Fields) -> tuple[str, ...]:
    """Return the labels of *issue* in *context*, the text that Linear writes for agents.

    No other part of a session's event has them. Text that people have written is removed first,
    so that a description can't add a label.
    """
    head = context
    for name in ("title", "description"):
        text = issue.get_text(name)
        for form in (text, html.escape(text, quote=False), html.escape(text)):
            head = head.replace(f"<{name}>{form}</{name}>", "", 1)
    head = head.partition("</issue>")[0]
    if re.search(r"<(title|description)>", head):
        # The text differs from the issue's fields, so its end is unknown: trust no label.
        return ()
    own_text = re.sub(r"<parent-issue\b.*?</parent-issue>", "", head, flags=re.DOTALL)
    labels = (_one_line(html.unescape(label)) for label in _LABEL.findall(own_text))
    return tuple(dict.fromkeys(filter(None, labels)))


def _author(comment: Fields) -> str:
    user = comment.get_section("user")
    return user.get_line("name") or user.get_line("displayName")


def _format_comment(author: str, body: str) -> tuple[str, ...]:
    """Return a comment in the form for a prompt; nothing if it is empty."""
    text = body.strip()
    if not text:
        return ()
    return (f"{author} wrote:\n\n{text}" if author else text,)


def _limit_items(issue: TrackerIssue) -> TrackerIssue:
    """Return *issue* with at most `MAX_ITEMS` comments and links, with notices of the others."""
    excess = len(issue.comments) - MAX_ITEMS
    comments = issue.comments[-MAX_ITEMS:]
    lacks = issue.lacks
    if excess > 0:
        lacks += (f"the oldest {excess} of {len(issue.comments)} comments are left out",)
    uploads = (url for text in (issue.text, *comments) for url in _UPLOAD.findall(text))
    links = tuple(dict.fromkeys((*issue.attachments, *filter(_LINK.fullmatch, uploads))))
    if len(links) > MAX_ITEMS:
        lacks += (f"the last {len(links) - MAX_ITEMS} of {len(links)} links are left out",)
    return replace(issue, comments=comments, attachments=links[:MAX_ITEMS], lacks=lacks)


def _safe_branch(name: str) -> str:
    """Return *name* if it is a valid, printable branch name, because prompts use it in commands."""
    is_usable = is_branch_name(name) and name.isprintable() and len(name) <= _LINE_CHARS
    return name if is_usable else ""


def _one_line(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:_LINE_CHARS]


def _format_key(key: str) -> str:
    return json.dumps(key[:_KEY_CHARS])[1:-1]


def to_request(
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
    """Return the request for *issue*; *hide* removes known secrets.

    *repository* and *base_branch* are the project's, for an issue without its own.

    Raises:
        UsageRefused: a value is not valid in a request; *where* is for the message.
    """
    title = hide(issue.title)
    excess = max(0, len(issue.comments) + len(comments) - MAX_ITEMS)
    # The text repeats a title that was cut.
    full_title = title if len(title) > MAX_TITLE_CHARS else ""
    try:
        return Request(
            title=_shorten_title(title),
            text="\n".join(filter(None, (full_title, hide(issue.text)))).strip(),
            labels=tuple(dict.fromkeys((*issue.labels, *map(str.strip, labels)))),
            comments=tuple(map(hide, (*issue.comments[excess:], *comments))),
            attachments=(*map(hide, issue.attachments), *attachments),
            identifier=issue.identifier,
            url=hide(issue.url),
            session=issue.session,
            repository=issue.repository or _shorten_title(repository),
            base_branch=issue.base_branch or _shorten_title(base_branch),
            assignees=issue.assignees,
            priority=issue.priority,
        )
    except ValidationError as error:
        raise UsageRefused(error.messages()[0], where=where) from None


def _shorten_title(title: str) -> str:
    plain_title = "".join(character if character.isprintable() else " " for character in title)
    return (
        plain_title
        if len(plain_title) <= MAX_TITLE_CHARS
        else f"{plain_title[: MAX_TITLE_CHARS - 1]}…"
    )


def find_free_name(title: str, taken: Collection[str]) -> str:
    """Return a name that is not in *taken* for the run of a request called *title*.

    It keeps letters and digits of every script, and their marks.

    >>> find_free_name("Debug: login timeout!", {"debug-login-timeout"})
    'debug-login-timeout-2'
    >>> find_free_name("Größe ändern 🚀", ()), find_free_name("🚀🚀", ())
    ('größe-ändern', 'request')
    """
    plain_title = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", title).lower())
    base = _HYPHENS.sub("-", "".join(map(_to_name_character, plain_title, f" {plain_title}")))
    base = base.strip("-")[:MAX_NAME_CHARS].strip("-") or "request"
    taken_names = {slug(name) for name in taken}
    number, name = 1, base
    while slug(name) in taken_names:
        number += 1
        name = f"{base}-{number}"
    return name


def _to_name_character(character: str, previous: str) -> str:
    """Return *character*, or a hyphen if a name can't have it; *previous* is the one before it."""
    kind = unicodedata.category(character)
    # Keep a mark only after a letter or digit: marks also change emoji, which are removed.
    is_mark = kind in ("Mn", "Mc") and unicodedata.category(previous)[0] in "LMN"
    is_valid = kind[0] in "LN" or (is_mark and not "\ufe00" <= character <= "\ufe0f")
    return character if is_valid and character not in _INVISIBLE else "-"
