"""Doing tasks: the runner, its schedule and what it prints."""
