"""An image in, a verdict out."""
