"""The registry's API, the local registry, pushes and shared records."""
