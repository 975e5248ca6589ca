"""What the user configured: orchestration.yaml, environment and flags, each with its source."""
