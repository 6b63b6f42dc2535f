"""A request in; versions and hashes out."""
