"""Another party's image: pulled, read by its files alone, judged, and what is laid on top."""
