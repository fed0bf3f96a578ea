"""Errors, names, files, processes: what every other package may use."""
