"""Several data sets in one text: all of them, told apart; a single one as it always was."""

import csv
import io
import json

import pytest

from equipoise.report import FORMATS, as_csv, as_json, as_latex, as_markdown, read, render, tables
from equipoise.report.table import ResultTable
from report.example import write_study


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ResultTable]:
    """Two data sets whose tables have different columns."""
    folder = write_study(tmp_path_factory.mktemp("several"), ["msl", "ew"], seeds=2, data="watch")
    write_study(folder, ["mimo"], seeds=1, data="boats")
    results = read(folder)
    return dict(zip(results.by_data(), tables(results), strict=True))


@pytest.mark.parametrize(
    ("form", "alone"), [("markdown", as_markdown), ("latex", as_latex), ("csv", as_csv), ("json", as_json)]
)
def test_one_data_set_is_written_as_its_format_has_it(
    form: str, alone: object, several: dict[str, ResultTable]
) -> None:
    assert callable(alone)
    assert render(form, {"watch": several["watch"]}) == alone(several["watch"])
    assert form in FORMATS


def test_markdown_and_latex_hold_one_table_after_the_other(several: dict[str, ResultTable]) -> None:
    boats, watch = several.values()
    assert render("markdown", several) == as_markdown(boats) + "\n" + as_markdown(watch)
    text = render("latex", several)
    assert text.index(f"% {boats.title}\n{as_latex(boats)}") < text.index(f"% {watch.title}\n{as_latex(watch)}")


def test_csv_is_one_table_with_the_data_in_front(several: dict[str, ResultTable]) -> None:
    rows = list(csv.DictReader(io.StringIO(render("csv", several))))
    assert [(row["data"], row["label"]) for row in rows] == [("boats", "mimo"), ("watch", "ew"), ("watch", "msl")]
    assert next(iter(rows[0])) == "data"
    columns = {data: {column.key for column in table.columns} for data, table in several.items()}
    only_watch = columns["watch"] - columns["boats"]
    assert only_watch
    for row in rows:
        table = several[row["data"]]
        for key in columns["boats"] & columns["watch"]:
            value = table.at(row["label"], key).value
            assert value is None or float(row[key]) == value
        assert all(row[key] == "" for key in only_watch) or row["data"] == "watch"


def test_json_is_a_list_of_tables(several: dict[str, ResultTable]) -> None:
    found = json.loads(render("json", several))
    assert [each.pop("data") for each in found] == ["boats", "watch"]
    assert found == [json.loads(as_json(table)) for table in several.values()]
