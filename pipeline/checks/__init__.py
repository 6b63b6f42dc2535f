"""The checks of stage smoke: what is asked of a finished image, and how the answers are judged."""
