"""A pushed image and nodes in; one engine that answers out."""
