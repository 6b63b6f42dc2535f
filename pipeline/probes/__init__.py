"""What runs inside images and on nodes: the standard library, and what is there."""
