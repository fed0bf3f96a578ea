"""The paper's tables as data: what they say of themselves, and that they fit the data sets and presets here."""

import math

import pytest

from equipoise.data.prepare.original import Original
from equipoise.data.sets import PUBLISHED
from equipoise.paper.published import GRID, TABLES, PaperTable, StandIn
from equipoise.study.registry import all_methods
from equipoise.training.presets import all_presets

EVERY = pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
SUMS = {  # of all printed accuracies and of all printed times, added up apart from this package
    "cremad": (1546.52, 1.1872),
    "urfunny": (2013.59, 1.748),
    "vggsound": (665.34, 0.546),
    "kinetics-sounds": (700.96, 1.024),
    "avmnist": (1599.50, 0.411),
    "mosei": (865.52, 1.071),
    "ave": (683.75, 0.238),
}


@EVERY
def test_every_number_is_there(table: PaperTable) -> None:
    accuracies = [mean for row in table.rows for mean, _ in (*([row.acc] if row.acc else []), *row.alone.values())]
    found = math.fsum(accuracies), math.fsum(row.time[0] for row in table.rows)
    assert found == pytest.approx(SUMS[table.name], abs=1e-6)


@EVERY
def test_a_table_fits_the_data_set_and_the_preset_of_its_name(table: PaperTable) -> None:
    original = PUBLISHED[table.name]
    assert set(table.modalities) == set(original().fields)
    assert table.split in original.protocols
    assert set(table.methods) <= set(all_methods())
    assert all_presets()[table.name].params["mimo"] == {"penalty": table.penalty, "smoothing": table.smoothing}
    assert table.penalty in GRID["penalty"]
    assert table.smoothing in GRID["smoothing"]
    assert table.notes


@EVERY
def test_rows_have_the_columns_of_their_kind(table: PaperTable) -> None:
    assert len({row.name for row in table.rows}) == len(table.rows)
    singles = [row.sensor for row in table.rows if row.sensor]
    assert singles in ([], list(table.modalities)), "all sensors alone, in the order of the columns, or none"
    for row in table.rows:
        assert (row.method == "unimodal") == (row.fused is None) == (row.disparity is None)
        assert set(row.alone) == (set(table.modalities) if row.fused else {row.sensor})
        assert all(0 < mean < 100 and 0 < deviation < 10 for mean, deviation in row.alone.values())


@EVERY
def test_mimo_is_last_and_printed_bold(table: PaperTable) -> None:
    printed = {row.name: row.acc[0] for row in table.rows if row.acc}
    assert table.rows[-1].name == "MIMO" == max(printed, key=printed.__getitem__)


def test_what_the_notes_say_is_in_the_tables() -> None:
    avmnist, kinetics, vgg = (TABLES[name] for name in ("avmnist", "kinetics-sounds", "vggsound"))
    ogmge, msl = avmnist.row("OGM-GE"), avmnist.row("MSL")
    assert ogmge is not None
    assert msl is not None
    assert (ogmge.acc, ogmge.alone) == (msl.acc, msl.alone)
    assert [table.rows[-1].disparity for table in (kinetics, vgg)] == pytest.approx([0.0194, 0.0327])
    twice = [table.row("MMPareto") for table in (kinetics, vgg)]
    assert [row.alone["audio"] for row in twice if row] == [(48.07, 1.37), (48.07, 1.37)]


def shapes(of: Original) -> dict[str, tuple[int, ...]]:
    return {name: field.view.shape(field.shape) if field.view else field.shape for name, field in of.fields.items()}


@EVERY
def test_a_stand_in_has_the_sensors_and_the_kinds_of_arrays(table: PaperTable) -> None:
    words = {"vectors": "somewhere"} if table.name == "mosei" else {}
    real, made = shapes(PUBLISHED[table.name](**words)), StandIn(table.name)(None).check()
    assert {name: len(shape) for name, shape in made.shapes.items()} == {k: len(v) for k, v in real.items()}
    assert len(made.train) < 100
    lengths = {name for name in made.train.inputs if name.endswith("_length")}
    assert lengths == ({f"{name}_length" for name in real} if table.name in ("urfunny", "mosei") else set())
