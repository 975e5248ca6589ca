"""Names made to leave a folder, or to be mixed up."""

from __future__ import annotations

from hypothesis import strategies as st

marks = st.sampled_from(
    ["..", "/", "\\", ".", "-", "--", "~", " ", "\0", "\n", "\u2028", "\u202e", "\uff0e", "\u2215"]
)
letters = st.sampled_from(
    ["a", "A", "ä", "a\u0308", "ß", "SS", "\u0131", "İ", "K", "\u212a", "ﬁ", "con"]
)
names = st.one_of(
    st.lists(marks | letters, min_size=1, max_size=8).map("".join),
    st.text(min_size=1, max_size=20),
    st.text(min_size=1, max_size=2).map(lambda text: text * 200),
    st.sampled_from(["../../etc/passwd", "-rf", "/etc/passwd", "nul", "a--217d2bf51f16e9dc"]),
)
