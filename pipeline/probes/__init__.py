"""What runs inside images: the standard library, and what is there."""
