"""Commands of doit: plugins, named in pyproject.toml."""
