"""What trackers send: taken at the door, kept once, acted on by one worker."""
