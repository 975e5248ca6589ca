"""Facts and figures from a run's journal: who worked when, what was used, what came of it.

Pure functions from facts to figures. Other packages draw, post and print them.
"""
