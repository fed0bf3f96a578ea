"""Results of studies: tables for terminal, markdown, LaTeX, csv and JSON, and one offline page."""

from equipoise.report.aggregate import Difference as Difference
from equipoise.report.aggregate import MeanStd as MeanStd
from equipoise.report.aggregate import RunGroup as RunGroup
from equipoise.report.aggregate import aggregate as aggregate
from equipoise.report.aggregate import paired_differences as paired_differences
from equipoise.report.formats import FORMATS as FORMATS
from equipoise.report.formats import as_csv as as_csv
from equipoise.report.formats import as_dict as as_dict
from equipoise.report.formats import as_json as as_json
from equipoise.report.formats import as_latex as as_latex
from equipoise.report.formats import as_markdown as as_markdown
from equipoise.report.formats import print_table as print_table
from equipoise.report.formats import render as render
from equipoise.report.overview import overview as overview
from equipoise.report.page import write_page as write_page
from equipoise.report.ranking import Ranked as Ranked
from equipoise.report.ranking import ranking as ranking
from equipoise.report.ranking import ranking_as_dicts as ranking_as_dicts
from equipoise.report.ranking import ranking_text as ranking_text
from equipoise.report.results import Results as Results
from equipoise.report.results import read as read
from equipoise.report.table import Cell as Cell
from equipoise.report.table import ResultColumn as ResultColumn
from equipoise.report.table import ResultTable as ResultTable
from equipoise.report.table import tables as tables
