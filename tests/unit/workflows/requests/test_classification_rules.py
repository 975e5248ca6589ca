from __future__ import annotations

from time import process_time

import pytest

from sequencer.model.request import MAX_TEXT_CHARS, Request
from sequencer.workflows.requests.routing import classify_by_rules

REQUESTS = {
    "question": """
        How does authentication work?
        What is the difference between the two caches?
        Why does login time out after a minute?
        Where is the retry delay configured?
        When does the nightly import run?
        Who calls parse_header?
        Which database do we use?
        Is the cache shared between processes?
        Are there tests for the importer?
        Does the API support pagination?
        Can I run two instances at once?
        Should we use Redis for sessions?
        Explain the plugin system
        Please explain how the lock works
        Tell me which modules depend on the parser
        Help me understand the release process
        Describe how a request travels through the server
        Could you explain the retry logic?
        The flag --fast, what is it for?
        How do I add a new language?
        What would it take to support Windows?
        I don't understand the state machine
        How to use it with Docker
        Search the codebase for uses of eval
        Find all callers of the old API
    """,
    "documentation": """
        Update README
        Update installation docs
        Add docstrings to the parser module
        Fix typo in the README.md
        Write a tutorial for beginners
        Improve the documentation of the REST API
        Document the configuration file
        Please update the changelog
        Add a how-to for backups
        Translate the user manual into German
        Rewrite docs/install.md
        Could you add code comments to the scheduler?
        Clarify the contributing guide
        Correct the glossary
        docs: update README
        Docs: missing example for retries
        The documentation is outdated
        Missing documentation for the --json flag
        Broken link in the docs
    """,
    "transient": """
        Search the web for X
        Search the web for the newest Python release
        Check Linear
        Check Linear for open issues
        Look up the current price of the API
        Google the error code of the payment provider
        Search online for alternatives to Celery
        Check the status page of our host
        What's the weather in Vienna?
        Search for recent papers on retrieval on arXiv
        Please look up who maintains libfoo
        Summarize this article https://example.org/a
        Browse Hacker News
        Check my calendar
        Look in Jira for tickets about invoices
    """,
    "planning": """
        Improve performance
        Improve the user experience
        Make it faster
        Make the app more secure
        Refactor the codebase
        Clean up the code
        Modernize the frontend
        Plan the migration to Postgres 17
        Propose an architecture for plugins
        Design a permission system
        Write a roadmap for next year
        Think about offline mode
        Research options for full-text search
        Evaluate message queues
        We need to scale
        Can you optimize the search?
        Draft a PRD for team accounts
        Investigate ways to cut the bill
    """,
    "code": """
        Add user profile page
        Fix the crash when the list is empty
        Implement OAuth login
        Add a --json option to the list command
        Remove the deprecated v1 endpoints
        Rename UserService to AccountService
        Login button doesn't work on Safari
        TypeError in checkout when the cart is empty
        Upgrade Django to 5.2
        Write tests for the date parser
        Refactor parse() into two functions
        Improve the error message when the file is missing
        Optimize the query in reports/monthly.py
        Improve caching of thumbnails on the product list page
        Debug login timeout
        Could you please add dark mode?
        Fix the documentation generator crash
        Add a docs page component to the sidebar
        fix: race condition in the queue
        The export fails with error 500
        Memory leak in the worker
        I'd like you to support IPv6
        Add Google login
        Check that the token is valid before saving
        Create an endpoint for invoices
        Let's drop Python 3.9
        Add a search field to the web form
        Make the timeout configurable with an option
        Bump requests from 2.31 to 2.32
        Add approval emails for new accounts
        Split the settings page into tabs
        Users should be able to reset their password
        User can't log in
        Search is slow
        Would it be possible to add CSV export?
        [Feature] Export to PDF
        Feature request: dark theme
        Plan mode does not show the last step
        Look up table is not updated
        Debugger does not stop at breakpoints
    """,
    "debugger": """
        Debug with approval: login times out
        Debug the login timeout with approval
        Debug the payment failure and wait for my approval before fixing
        Please debug this and ask for approval first
        Reproduce the crash before you fix it
        Get approval after debugging the upload
        Reproduce the bug, then wait for sign-off
    """,
    "orchestrator": """
        Break into sub-issues
        Break the checkout flow into sub-issues
        Split this epic into smaller tasks
        Please break this down into subtasks and delegate them
        Create sub-issues for the checkout and assign them
        Decompose the billing rewrite into separate tickets
        Orchestrate the migration of all services
        Delegate to child agents: rebuild the importer
    """,
}
UNSURE = """
    Strawberries
    Login
    Profile page
    Ideas for the offsite
    2026-11-22
    ???!
    Übersetzung der Startseite
    Dark mode
"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


TABLE = [(word, title) for word, titles in REQUESTS.items() for title in lines(titles)]


def test_the_table_is_large_enough_to_mean_something() -> None:
    assert len(TABLE) >= 100
    assert len({title for _, title in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("word", "title"), TABLE)
def test_a_request_is_classified(word: str, title: str) -> None:
    guess = classify_by_rules(Request(title=title))
    assert guess.word == word, guess.reason
    assert guess.reason


@pytest.mark.parametrize(("word", "title"), TABLE[::7])
def test_the_case_of_letters_and_blanks_do_not_matter(word: str, title: str) -> None:
    assert classify_by_rules(Request(title=f"  {title.upper()} ")).word == word


@pytest.mark.parametrize("title", lines(UNSURE))
def test_the_rules_rather_say_nothing_than_guess(title: str) -> None:
    guess = classify_by_rules(Request(title=title))
    assert guess.word is None, guess.reason
    assert "no rule fits" in guess.reason


def test_where_the_title_says_nothing_the_first_line_of_the_text_decides() -> None:
    text = "\n\nThe page crashes when the name is empty.\nHow can that be?\n"
    assert classify_by_rules(Request(title="Profile page", text=text)).word == "code"
    assert classify_by_rules(Request(title="What is a profile?", text=text)).word == "question"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Reproduce it and get my approval before the fix.", "debugger"),
        ("Please break this into sub-issues.", "orchestrator"),
    ],
)
def test_an_explicit_wish_may_stand_anywhere_in_the_text(line: str, word: str) -> None:
    text = f"The session ends too early.\n\n{line}\n"
    assert classify_by_rules(Request(title="Fix the login timeout", text=text)).word == word


def test_words_of_an_explicit_wish_that_stand_far_apart_are_none() -> None:
    text = "Debug output is missing.\n\nThe approval page is fine."
    assert classify_by_rules(Request(title="Fix the log", text=text)).word == "code"
    title = f"Debug the log {'very ' * 30}carefully; the approval page is fine"
    assert classify_by_rules(Request(title=title)).word == "code"


@pytest.mark.parametrize(
    "part",
    ["a ", "break ", "create sub ", "please ", "add docs", "search the ", "make a ", "((", "?"],
)
def test_a_hostile_request_costs_little(part: str) -> None:
    title = (part * 500)[:500]
    text = (part * (MAX_TEXT_CHARS // len(part)))[:MAX_TEXT_CHARS]
    began = process_time()
    classify_by_rules(Request(title=title, text=text))
    classify_by_rules(Request(title=title, text=text.replace(part[-1], "\n")))
    assert process_time() - began < 1.0
