"""What a step does, in layers around the work of its agent.

Each layer is one function in a file of its own. It gets the attempt, does its part, and calls
``proceed`` for the layers inside of it: once, not at all, or once for each agent. `layers_of`
has their order, and leaves out those that this attempt does not need.

What goes wrong after the claim is an outcome and never an exception, so that every claim ends in
a commit, a failure or a release.
"""
