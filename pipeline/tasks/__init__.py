"""The seam between graph and stages: every task of the project."""
