"""What a task is, and whether it is up to date."""
