"""Posts about a run: to files, webhooks, GitHub and Linear."""
