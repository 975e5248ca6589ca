#!/bin/sh
# Runs the project's tests and says in its last line how they went: that line picks the way in a flow.
# It ends with 0 either way, because tests that fail are an answer. Only what can't be run at all is a failure.
if sh -c "${TEST_COMMAND:-python3 -m pytest -q}"; then
    echo passed
else
    code=$?
    [ "$code" -lt 126 ] || exit "$code"
    echo failed
fi
