"""The page: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from equipoise.inside import write_whole
from equipoise.report import figures
from equipoise.report.aggregate import Line, aggregate
from equipoise.report.answer import answer, caution, question
from equipoise.report.details import repeat, settings_of, versions_of
from equipoise.report.markup import folded, html_table, paragraph, section
from equipoise.report.paired import BASELINE, compared_with, paired
from equipoise.report.results import Results, Row, read
from equipoise.report.tables import fault_table, main_table, measure_table, missing_table, protocol_table

# Hundreds of charts help nobody, and would not fit a page one can send.
MOST_DRAWN = 40
MEASURES = {
    "fused accuracy": ("test", "fused"),
    "fused accuracy under faults": ("test", "faults", "mean", "fused"),
    "committee accuracy": ("test", "committee"),
    "committee accuracy under faults": ("test", "faults", "mean", "committee"),
}


def page(folder: str | Path, command: str | None = None, baseline: str = BASELINE) -> Path:
    """Write ``report.html`` into a folder of results: one file, no network, light and dark.

    Args:
        folder: The folder given to ``equipoise compare --out``.
        command: The command line that made the results, shown under "How to repeat it".
        baseline: What the others are compared with.

    Returns:
        Where the page is.
    """
    results = read(folder)
    by_data = results.by_data()
    style, script = (files("equipoise.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    text = Template(files("equipoise.report").joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(f"Equipoise: {', '.join(by_data)}"),
        style=style,
        script=script,
        # Only this very style and script may act: a browser refuses whatever else might have slipped in.
        style_hash=_hash(style),
        script_hash=_hash(script),
        warning=paragraph(results.warning, "warning") if results.warning else "",
        main="".join(
            _study(f"d{at}", data, rows, results, baseline) for at, (data, rows) in enumerate(by_data.items())
        ),
        repeat=repeat(results, command),
    )
    return write_whole(results.folder, "report.html", text.encode("utf-8", "replace"))


def _study(identity: str, data: str, rows: Sequence[Row], results: Results, baseline: str) -> str:
    """Everything about one data set, the answer first."""
    lines = aggregate(rows)
    differences = {title: paired(rows, baseline, path) for title, path in MEASURES.items()}
    baseline = compared_with(differences["fused accuracy"], baseline)
    drawn = [line for at, line in enumerate(lines) if at < MOST_DRAWN or line.label == baseline]
    styles = _line_styles(drawn, baseline)
    said = [answer(lines, differences["fused accuracy"], baseline, "fused accuracy")]
    if differences["fused accuracy under faults"]:
        under_faults = "fused accuracy under sensor faults"
        said.append(answer(lines, differences["fused accuracy under faults"], baseline, under_faults))
    careful = caution(differences["fused accuracy"])
    missing = html_table(missing_table(rows), sortable=True)
    return "".join(
        [
            f'<section class="answer" aria-labelledby="{identity}">',
            f'<h2 id="{identity}">{escape(question(data, baseline))}</h2>',
            *(paragraph(each) for each in said),
            paragraph(careful, "quiet") if careful else "",
            paragraph(f"Charts show the {MOST_DRAWN} methods best by fused; the tables show all.", "quiet")
            if len(drawn) < len(lines)
            else "",
            "</section>",
            section(f"{identity}-table", "The table", html_table(main_table(rows, data, baseline), sortable=True)),
            section(
                f"{identity}-differences",
                "Differences to joint training",
                figures.difference_plots(f"{identity}-difference", differences),
            ),
            section(
                f"{identity}-epochs",
                "Accuracy over epochs",
                figures.accuracy_over_epochs(f"{identity}-epoch", results, drawn),
            ),
            section(
                f"{identity}-balance",
                "What the balancers did",
                figures.balancing_over_epochs(f"{identity}-balancing", results, drawn),
            ),
            section(
                f"{identity}-faults",
                "Sensor faults",
                figures.noise_curves(f"{identity}-noise", drawn, styles),
                missing and paragraph(
                    "A missing sensor, answered side by side: its input set to zero or to the training mean (fused "
                    "prediction), or left out of the committee. Modality dropout, where it was run, is a line of its "
                    "own.", "quiet"
                ),
                missing,
                folded("Every fault, fused", html_table(fault_table(drawn, "fused"))),
                folded("Every fault, committee", html_table(fault_table(drawn, "committee"))),
            ),
            section(f"{identity}-time", "Training time", figures.time_per_step(f"{identity}-step", drawn)),
            section(
                f"{identity}-more",
                "In detail",
                folded("Each modality alone, by every protocol", html_table(protocol_table(rows), sortable=True)),
                folded("F1, calibration, loss, worst fault, memory", html_table(measure_table(rows), sortable=True)),
                folded("Every hyper-parameter", settings_of(lines)),
                folded("Versions and devices", versions_of(rows)),
            ),
        ]
    )  # fmt: skip


def _line_styles(lines: Sequence[Line], baseline: str) -> dict[str, str]:
    """A colour and dashes for each label; the baseline in ink, as it is what one compares with."""
    others = [line.label for line in lines if line.label != baseline]
    return {baseline: "ink"} | {
        label: f"s{at % figures.STYLES} d{at // figures.STYLES % 4}" if at >= figures.STYLES else f"s{at}"
        for at, label in enumerate(others)
    }


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
