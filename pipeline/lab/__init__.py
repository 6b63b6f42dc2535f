"""Two machines as containers."""
