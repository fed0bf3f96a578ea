"""Studies: methods × data × seeds × folds, run by an executor and collected row by row."""
