"""Tools that know nothing of images or tasks."""
