"""Errors, names, files, processes: modules that every other package may use."""

VERSION = "0.1.0"
