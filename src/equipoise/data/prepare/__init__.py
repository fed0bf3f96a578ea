"""Prepare publishers' files: read clips in parallel, write one prepared folder."""
