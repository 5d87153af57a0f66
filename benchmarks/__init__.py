"""Measured claims about this project, each with the command that measures it; see README.md."""
