"""`report`: what a run did. What there is to show comes from plug-ins."""

from __future__ import annotations

from typing import Any

from sequencer.cli.context import Invocation
from sequencer.cli.contributions import chosen, contributions_to, open_verb, options_of, ways
from sequencer.cli.options import pass_invocation, with_options
from sequencer.errors import UsageRefused

_CONTRIBUTIONS = contributions_to("report")


@open_verb("report")
@with_options(*options_of(_CONTRIBUTIONS))
@pass_invocation
def report(invocation: Invocation, /, **given: Any) -> int | None:
    """Show what a run did: who worked when, the critical path, and the speedup.

    While a run continues, running attempts count as if they ended now. The page has the graph,
    the steps and what they cost; it needs no server and no network. The plots show cost, tokens
    and time as they grew, and what reviews found: --svg and --png draw them, and with --gantt who
    worked when. The page and the plots need the extra 'web', --png the extra 'picture'.

    \b
    Examples:
      sequencer report
      sequencer --run review report --html review.html
      sequencer --run review report --gantt --svg review.svg
      sequencer report --metrics --all-runs --output /srv/s.prom
    """
    otherwise = [one for one in _CONTRIBUTIONS if not one.needs and one.is_available(invocation)][
        :1
    ]
    if not otherwise and not any(given.values()):
        raise UsageRefused(
            "no plug-in that is enabled shows a run as text", where="sequencer report"
        )
    return chosen("report", ways(), given, otherwise)(invocation, given)
