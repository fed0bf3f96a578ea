"""What came out: tables for terminal, markdown, LaTeX, csv and JSON, and one offline page."""

from equipoise.report.aggregate import Line, Spread, aggregate
from equipoise.report.page import page
from equipoise.report.paired import Difference, paired
from equipoise.report.results import Results, read
from equipoise.report.several import FORMATS, written
from equipoise.report.table import Cell, Column, Table
from equipoise.report.tables import tables
from equipoise.report.terminal import terminal
from equipoise.report.text import as_csv, as_dict, as_json, as_latex, as_markdown

__all__ = [
    "FORMATS",
    "Cell",
    "Column",
    "Difference",
    "Line",
    "Results",
    "Spread",
    "Table",
    "aggregate",
    "as_csv",
    "as_dict",
    "as_json",
    "as_latex",
    "as_markdown",
    "page",
    "paired",
    "read",
    "tables",
    "terminal",
    "written",
]
