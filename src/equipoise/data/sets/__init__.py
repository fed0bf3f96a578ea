"""The data sets of the paper, one module each."""
