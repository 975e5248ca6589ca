from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.views.gantt import drawn
from sequencer.cli.views.text import width
from tests.unit.cli.charts import chart, side_by_side, team, troubled
from tests.unit.history.journal_facts import Told

IN_ASCII = """\
demo - complete

  TASK     0s          30s         1m          1m30     WORK
* flaky    xxxx........########                       30.0 s
  lost     ------------------==                       50.0 s
* fine                         ????????????????            -
* publish                                      #####  10.0 s

## critical path   == accepted   xx failed
-- given back or lost   ?? waits for a person
.. waits for another try

wall-clock time 1 min 40 s, work of one worker 1 min 30 s, speed-up 1.50
critical path 1 min 10 s, wall-clock time is 43% longer
  flaky -> fine -> publish
75% of the time of 2 places was work, 2 at once at most
40.0 s only people were waited for; speed-up and places leave that out
"""


def text(told: Told, columns: int = 60, *, is_ascii: bool = False) -> str:
    return drawn(chart(told), columns, is_ascii=is_ascii).text() + "\n"


def test_troubles_in_ascii() -> None:
    assert text(troubled(), is_ascii=True) == IN_ASCII
    assert text(troubled(), is_ascii=True).isascii()


def test_roles_have_a_column_where_there_are_roles() -> None:
    graph = team({"plan": "researcher", "parser": "implementer"}, more=["later"])
    lines = drawn(chart(side_by_side(), graph=graph), 90, is_ascii=False).text().splitlines()
    assert lines[2].split()[:3] == ["TASK", "ROLE", "0s"]
    assert lines[3].split()[:3] == ["◆", "plan", "researcher"]
    # Nothing has reached it: a name, and no bar.
    assert lines[8].split() == ["later", "-"]
    assert "ROLE" not in text(side_by_side())


def test_a_failure_is_never_hidden_behind_what_came_after() -> None:
    told = Told().claim("a", 0).end("a", 0, 0.1, "failed")
    told.claim("a", 0.1, None, attempt=2).end("a", 0.1, 1000, attempt=2)
    (line,) = (line for line in text(told).splitlines() if line.startswith("◆ a"))
    assert line.startswith("◆ a     ✗█████")


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=50), st.floats(0, 1e5), st.floats(0, 1e5)),
        min_size=1,
        max_size=8,
        unique_by=lambda task: task[0],
    ),
    st.integers(60, 200),
    st.booleans(),
)
def test_no_line_is_wider_than_asked_for(
    tasks: list[tuple[str, float, float]], columns: int, is_ascii: bool
) -> None:
    told = Told()
    for name, begin, length in tasks:
        told.claim(name, begin).end(name, begin, begin + length)
    for line in text(told, columns, is_ascii=is_ascii).splitlines()[: len(tasks) + 3]:
        assert width(line) <= columns
