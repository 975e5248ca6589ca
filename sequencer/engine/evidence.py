"""Judges the evidence of an attempt, in one place and in the same way for all clients.

Executors report facts (`model.evidence`) and decide nothing. A turn that did not end cleanly is
never accepted; a turn that did must show what its step expects. The files are checked for
changes only if that decides something, after the client has ended, and never for a command: its
exit code is its evidence.

Not promised: that the work is right, or that no one else made the change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from sequencer.engine.stagnation import Streak
from sequencer.engine.tree_state import Deadline, TreeState, TreeUnknown, WatchedTree, watch_tree
from sequencer.model.answers import MARKS
from sequencer.model.evidence import Evidence, TurnEnd, format_quantity
from sequencer.model.outcome import Missing, Outcome, OutcomeStatus
from sequencer.model.step import Expects, Stagnation, Step

LOOK_S = 2.0
"""How long the checks of an attempt's files may take together."""
BEFORE_S = 1.0
"""The part of it before the agent starts."""
COARSE_S = 0.012
"""How far the times of files may lag the clock."""
_NOTHING_TO_DO = re.compile(
    rf"[\s>#+{MARKS}-]{{0,20}}(?:\d{{1,9}}[.)]\s)?[\s{MARKS}]{{0,20}}"
    rf"nothing\s+to\s+do[\s{MARKS}]{{0,20}}[:\uff1a][^\w\n]*+(?!REASON\W*\Z)\w",
    re.IGNORECASE,
)
"""May have Markdown around it. The word REASON, copied from the prompt, is not a reason."""
_LACKS: dict[Missing, str] = {
    "change": "it has changed nothing, and its step expects a change",
    "text": "it has said nothing, and its step expects text",
    "anything": "it has shown nothing: no text, no result of a tool, no change that was seen",
}
_ASKS: dict[Missing, str] = {
    "change": "changed no file and made no commit. The step is done when files have changed",
    "text": "said nothing. The step is done when you have written an answer",
    "anything": "showed nothing: no answer, no result of a tool, no changed file",
}
SAY_NOTHING_TO_DO = (
    "If there is nothing to do, end your answer with the line `Nothing to do: REASON`."
)
OWN_WORD = frozenset({"command", "rehearsal"})
"""Kinds of executors that are not judged: a command has its exit code, and a rehearsal no agent."""
Notice = Callable[[str], object]
"""Writes a line to the step's log."""


def _is_alone() -> bool:
    return False


class PriorAttempts(Struct, frozen=True):
    """What is known about the earlier attempts at a step when another one starts."""

    notes: tuple[str, ...] = ()
    """Blocks of the prompt about the attempts before."""
    last: Streak | None = None
    """The streak of the last attempt; None: there is none, or it does not matter."""
    is_shared: Callable[[], bool] = _is_alone
    """Returns whether another attempt has worked in the same folder at the same time."""


NO_PRIOR = PriorAttempts()


class ChangeWatch(Struct):
    """Watches the files of one attempt for changes."""

    folder: Path
    ignored: Sequence[Path]
    """Folders of the run inside it; changes there don't count."""
    prior: PriorAttempts
    began: float = field(default_factory=time.time)
    """Seconds since 1970."""
    before: TreeState | None = None
    left_s: float = field(default_factory=lambda: LOOK_S)
    tree: WatchedTree | None = None

    def begin(self) -> None:
        """Record the state of the files before the agent starts, if a change is expected."""
        self.before = self._read_state(BEFORE_S)

    def _read_state(self, most_s: float) -> TreeState | None:
        """Return the state of the files; None: it can't be read in time."""
        start = time.monotonic()
        try:
            deadline = Deadline.from_now(min(most_s, self.left_s))
            self.tree = self.tree or watch_tree(self.folder, self.ignored)
            return self.tree.read_state(deadline)
        except TreeUnknown:
            return None
        finally:
            self.left_s -= time.monotonic() - start

    def measure(self, shown: Evidence, *, counts: bool) -> Evidence:
        """Return *shown* with the changes, as far as they are known.

        If *counts*, also count the files and commits that changed since the agent started.
        """
        new_state = None if self.prior.is_shared() else self._read_state(self.left_s)
        if new_state is None:
            return shown
        shown = shown.replace(tree=new_state.digest)
        if not counts:
            has_changed = new_state.newest >= self.began - COARSE_S
            return self._count_repeats(shown.replace(has_changed=has_changed), new_state)
        if self.before is None or self.tree is None:
            return self._count_repeats(shown, new_state)
        try:
            changes = self.tree.compare_states(
                self.before, new_state, Deadline.from_now(self.left_s)
            )
        except TreeUnknown:
            return self._count_repeats(shown, new_state)
        shown = shown.replace(
            has_changed=changes.are_any, files=changes.files, commits=changes.commits
        )
        return self._count_repeats(shown, new_state)

    def _count_repeats(self, evidence: Evidence, new_state: TreeState) -> Evidence:
        """Return *evidence* with the number of attempts in a row that repeated each other."""
        last_streak = self.prior.last
        if last_streak is None or evidence.is_idle or evidence.compared != last_streak.answer:
            return evidence
        if last_streak.tree is None:
            is_same = new_state.newest < last_streak.at - COARSE_S
        else:
            is_same = last_streak.tree == evidence.tree
        return evidence.replace(repeats=last_streak.attempts + 1) if is_same else evidence


def judge(outcome: Outcome, step: Step, watch: ChangeWatch | None, notice: Notice) -> Outcome:
    """Return *outcome* of an agent's attempt at *step*, failed if its evidence is not enough.

    Without a *watch*, the changes are unknown.
    """
    evidence = outcome.evidence
    if evidence is None or not outcome.is_accepted:
        return outcome
    outcome = judge_turn(outcome, notice)
    if not outcome.is_accepted:
        return outcome
    if says_nothing_to_do(outcome.output):
        evidence = evidence.replace(is_idle=True)
    last_streak = None if watch is None else watch.prior.last
    if step.expects == "change":
        evidence = evidence if watch is None else watch.measure(evidence, counts=True)
        if evidence.has_changed is None and not evidence.is_idle:
            notice("whether files have changed is not known: it took too long, or the folder "
                   "is shared with another attempt")  # fmt: skip
    elif watch and (
        is_in_doubt(evidence, step.expects) or _may_repeat(evidence, step, last_streak)
    ):
        evidence = watch.measure(evidence, counts=False)
    # The error of an accepted outcome is advice, and only for a turn that was cut off.
    return judge_work(outcome.replace(evidence=evidence, error=None), step.expects, step.name)


def judge_turn(outcome: Outcome, notice: Notice = str) -> Outcome:
    """Return *outcome*, failed if the agent's turn did not end cleanly.

    If the reason is not known, a turn with text and without open tool calls is accepted, with a
    notice. The ``error`` of the outcome may have the executor's advice.
    """
    evidence = outcome.evidence
    if evidence is None or not outcome.is_accepted or evidence.turn_end is TurnEnd.CLEAN:
        return outcome
    reason = (
        f"its client says {evidence.reason!r}" if evidence.reason else "its client gives no reason"
    )
    if evidence.turn_end is TurnEnd.UNKNOWN and evidence.has_text and not evidence.open_calls:
        notice(f"the turn ended for a reason that is not known here ({reason}); accepted, because "
               "the agent has answered and no tool call is open")  # fmt: skip
        return outcome
    if calls := format_quantity(evidence.open_calls, "tool call"):
        reason += f", and {calls} got no result"
    if outcome.denials:
        reason += f"; a tool call was refused before: {outcome.denials[-1]}"
    advice = outcome.error or "try again, or make the step smaller"
    error = f"the agent's turn was cut off: {reason}\n{advice}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


def judge_work(outcome: Outcome, expects: Expects | None, name: str) -> Outcome:
    """Return *outcome*, failed if its evidence does not show what step *name* expects."""
    evidence = outcome.evidence
    missing_text = (
        None if evidence is None or not outcome.is_accepted else find_missing(evidence, expects)
    )
    if missing_text is None:
        return outcome
    error = f"the attempt ended cleanly, but {_LACKS[missing_text]}"
    error += f"\nif that is right, set expects: nothing for step {name!r}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error, missing=missing_text)


def find_missing(shown: Evidence, expects: Expects | None) -> Missing | None:
    """Return what is missing from the evidence for what the step expects; None: nothing.

    >>> find_missing(Evidence(), None), find_missing(Evidence(has_text=True), None)
    ('anything', None)
    >>> find_missing(Evidence(has_text=True, has_changed=False), "change")
    'change'
    """
    if expects == "nothing" or shown.is_idle:
        return None
    has_said = shown.has_text or shown.is_stated
    has_worked = has_said or shown.answered_calls > 0
    if expects == "text":
        return None if has_said else "text"
    if expects == "change":
        # Unknown is not "no change", but an attempt that has shown nothing else shows nothing.
        is_enough = has_worked if shown.has_changed is None else shown.has_changed
        return None if is_enough else "change"
    return None if has_worked or shown.has_changed else "anything"


def is_in_doubt(shown: Evidence, expects: Expects | None) -> bool:
    """Return whether only a change of files could still meet the expectation."""
    return expects is None and find_missing(shown, expects) is not None


def _may_repeat(evidence: Evidence, step: Step, last_streak: Streak | None) -> bool:
    """Return whether the attempt may repeat *last_streak*."""
    is_same = last_streak is not None and evidence.compared == last_streak.answer
    if not is_same or step.expects == "nothing" or evidence.is_idle:
        return False
    return bool((step.stagnation or Stagnation()).attempts)


def says_nothing_to_do(answer: str) -> bool:
    r"""Return whether the last line of *answer* says that there was nothing to do, with a reason.

    >>> says_nothing_to_do("I looked.\n**Nothing to do:** all issues are closed.\n")
    True
    >>> says_nothing_to_do("Nothing to do:"), says_nothing_to_do("there is nothing to do: no")
    (False, False)
    """
    # The end of a code block does not count as a line.
    lines = [line for line in answer[-4000:].splitlines() if line.strip(" \t`~")]
    return bool(lines) and _NOTHING_TO_DO.match(lines[-1]) is not None


def format_missing_note(missing: str | None) -> str | None:
    """Return the block of the next prompt after an attempt in which *missing* was missing."""
    for kind, text in _ASKS.items():
        if kind == missing:
            return f"# Your last attempt did not count\n\nIt {text}. {SAY_NOTHING_TO_DO}"
    return None
