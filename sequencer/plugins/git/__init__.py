"""Git: how it is called, the store of a shared run, and the code of its steps."""
