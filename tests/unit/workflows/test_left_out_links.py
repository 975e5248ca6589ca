"""What a request may not have is left out, and the request says so."""

from __future__ import annotations

from sequencer.model.request import MAX_ITEMS
from sequencer.plugins.requests.issues import TrackerIssue, _limit_items


def test_links_above_the_limit_are_left_out_with_a_notice() -> None:
    links = tuple(f"https://example.com/{number}" for number in range(MAX_ITEMS + 3))
    issue = TrackerIssue(title="Too many", text="See the links.", attachments=links)
    bounded = _limit_items(issue)
    assert bounded.attachments == links[:MAX_ITEMS]
    assert bounded.lacks == (f"the last 3 of {MAX_ITEMS + 3} links are left out",)
