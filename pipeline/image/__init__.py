"""A lock in; a root filesystem, layers and an image out."""
