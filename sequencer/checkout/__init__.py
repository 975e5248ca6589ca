"""The work tree of a run that is shared through git; see `carrier.GitCarrier`.

Code travels with the state: a step begins on the code that the state goes with, and what
it has committed, or may be committed for it, is pushed together with the state.
"""
