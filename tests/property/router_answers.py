"""What a router may answer: an allowed name, almost one, or anything else."""

from __future__ import annotations

from hypothesis import strategies as st

ALLOWED = ("main.md", "reviewer.md", "team/plan.txt")
around = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\t",
        "\r\n",
        "\u2028",
        "\x1c",
        "\u00a0",
        "\ufeff",
        "\0",
        "./",
        "../",
        "- ",
        "`",
    ]
)
words = st.sampled_from(
    [*ALLOWED, "main", "MAIN.md", "plan", "team", "secret.md", "main.md.md", "/main.md", "[]", '"']
)
answers = st.one_of(
    st.lists(around | words, max_size=5).map("".join),
    st.text(max_size=40),
    st.builds(lambda word, piece: word + piece * 5_000, words, around),
)
