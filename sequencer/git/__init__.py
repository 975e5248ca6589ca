"""All of git: how it is called, the store of a shared run, and the code that goes with it."""
