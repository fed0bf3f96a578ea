"""What came out: tables for terminal, markdown, LaTeX, csv and JSON, and one offline page."""

from equipoise.report.aggregate import MeanStd, RunGroup, aggregate
from equipoise.report.page import write_page
from equipoise.report.paired import Difference, paired_differences
from equipoise.report.results import Results, read
from equipoise.report.several import FORMATS, render
from equipoise.report.table import Cell, ResultColumn, ResultTable
from equipoise.report.tables import tables
from equipoise.report.terminal import print_table
from equipoise.report.text import as_csv, as_dict, as_json, as_latex, as_markdown

__all__ = [
    "FORMATS",
    "Cell",
    "Difference",
    "MeanStd",
    "ResultColumn",
    "ResultTable",
    "Results",
    "RunGroup",
    "aggregate",
    "as_csv",
    "as_dict",
    "as_json",
    "as_latex",
    "as_markdown",
    "paired_differences",
    "print_table",
    "read",
    "render",
    "tables",
    "write_page",
]
