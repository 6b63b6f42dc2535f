"""Tandem: a reproducible image and a two-node vLLM service, as a task graph on doit."""
