"""What is read from a run's journal: who worked when, what was used, what it came to.

Pure: from facts to figures. Whoever draws, posts or prints them is somebody else.
"""
