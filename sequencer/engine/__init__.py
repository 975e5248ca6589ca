"""Claim, run, record: the only code that moves a run."""
