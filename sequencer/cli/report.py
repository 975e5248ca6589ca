"""`report`: show what a run did. Everything that it can show comes from plug-ins."""

from __future__ import annotations

from typing import Any

from sequencer.cli.context import Invocation
from sequencer.cli.contributions import (
    choose_contribution,
    collect_options,
    contribution_arguments,
    contributions_to,
)
from sequencer.cli.options import pass_invocation, verb, with_options


@verb("report", **contribution_arguments("report"))
@with_options(*collect_options(contributions_to("report")))
@pass_invocation
def report(invocation: Invocation, /, **given: Any) -> int | None:
    """Show what a run did: who worked when, the critical path, and the speedup.

    While a run continues, running attempts count as if they ended now. The page has the graph,
    the steps and what they cost; it needs no server and no network. The plots show how cost,
    tokens and time grew, and what reviews found: --svg and --png draw them, and with --gantt they
    draw who worked when. The page and the plots need the extra 'web', --png the extra 'picture'.

    \b
    Examples:
      sequencer report
      sequencer --run review report --html review.html
      sequencer --run review report --gantt --svg review.svg
      sequencer report --metrics --all-runs --output /srv/s.prom
    """
    contributions = contributions_to("report")
    # Without an option, show the first report that needs no value and is available here.
    without_values = [c for c in contributions if c.flags and not c.needs]
    available = [c for c in without_values if c.is_available(invocation)] or without_values
    return choose_contribution("report", contributions, given, available[:1])(invocation, given)
