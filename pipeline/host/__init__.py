"""This machine: its tooling, its set-up, and Docker engines, here or on a node."""
