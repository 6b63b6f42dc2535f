"""doit's plugin commands, and what they print."""
