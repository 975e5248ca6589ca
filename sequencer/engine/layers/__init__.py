"""An attempt at a step, in layers around the work of its agent.

Each layer is one function in its own file. It gets the attempt, does its part, and calls
``proceed`` for the layers inside of it: once, never, or once for each agent. `list_layers` has the
order, and says which layers an attempt needs.

Anything that goes wrong after the claim becomes an outcome and not an exception, so that every
claim ends in a commit, a failure or a release.
"""
