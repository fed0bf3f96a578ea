"""The page: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from equipoise.report import figures
from equipoise.report.aggregate import Row, RunGroup, modalities
from equipoise.report.answer import answer, caution, question
from equipoise.report.details import repeat, settings_of, versions_of
from equipoise.report.markup import folded, html_table, paragraph, section
from equipoise.report.paired import BASELINE, compared_with, differences_between
from equipoise.report.results import MOST_CURVES, Results, read
from equipoise.report.table import ResultTable, shortened
from equipoise.report.tables import fault_table, main_table, measure_table, missing_table, protocol_table
from equipoise.util.files import write_atomic

# Hundreds of charts help nobody, and would not fit a page one can send; nor would thousands of lines.
MOST_DRAWN = 40
MOST_LISTED = 500
MEASURES = {
    "fused accuracy": ("test", "fused"),
    "fused accuracy under faults": ("test", "faults", "mean", "fused"),
    "committee accuracy": ("test", "committee"),
    "committee accuracy under faults": ("test", "faults", "mean", "committee"),
}


def write_page(folder: str | Path | Results, command: str | None = None, baseline: str = BASELINE) -> Path:
    """Write ``report.html`` into a folder of results: one file, no network, light and dark.

    Args:
        folder: The folder given to ``equipoise compare --out``, or what `read` has read there.
        command: The command line that made the results, shown under "How to repeat it".
        baseline: What the others are compared with.

    Returns:
        Where the page is.
    """
    results = folder if isinstance(folder, Results) else read(folder)
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
    return write_atomic(results.folder, "report.html", text.encode("utf-8", "replace"))


def _study(identity: str, data: str, rows: Sequence[Row], results: Results, baseline: str) -> str:
    """Everything about one data set, the answer first."""
    lines, names = results.lines[data], modalities(rows)
    differences = {title: differences_between(lines, baseline, path) for title, path in MEASURES.items()}
    baseline = compared_with(differences["fused accuracy"], baseline)
    drawn = [line for at, line in enumerate(lines) if at < MOST_DRAWN or line.label == baseline]
    listed = [line for at, line in enumerate(lines) if at < MOST_LISTED or line.label == baseline]
    curves = _with_curves(drawn)
    left_out = _left_out(lines, listed, curves)
    plotted = {line.label for line in listed}
    shown = {title: [each for each in some if each.label in plotted] for title, some in differences.items()}
    styles = _line_styles(drawn, baseline)
    said = [answer(lines, differences["fused accuracy"], baseline, "fused accuracy")]
    if differences["fused accuracy under faults"]:
        under_faults = "fused accuracy under sensor faults"
        said.append(answer(lines, differences["fused accuracy under faults"], baseline, under_faults))
    careful = caution(differences["fused accuracy"])
    missing = _html(missing_table(lines, names), baseline)
    return "".join(
        [
            f'<section class="answer" aria-labelledby="{identity}">',
            f'<h2 id="{identity}">{escape(question(data, baseline))}</h2>',
            *(paragraph(each) for each in said),
            paragraph(careful, "quiet") if careful else "",
            paragraph(f"Charts show the {MOST_DRAWN} methods best by fused; the tables show all.", "quiet")
            if len(drawn) < len(lines)
            else "",
            paragraph(left_out, "quiet") if left_out else "",
            "</section>",
            section(f"{identity}-table", "The table", _html(main_table(rows, data, baseline, lines=lines), baseline)),
            section(
                f"{identity}-differences",
                "Differences to joint training",
                figures.difference_plots(f"{identity}-difference", shown),
            ),
            section(
                f"{identity}-epochs",
                "Accuracy over epochs",
                figures.accuracy_over_epochs(f"{identity}-epoch", results, curves),
            ),
            section(
                f"{identity}-balance",
                "What the balancers did",
                figures.balancing_over_epochs(f"{identity}-balancing", results, curves),
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
                folded("Each modality alone, by every protocol", _html(protocol_table(lines, names), baseline)),
                folded("F1, calibration, loss, worst fault, memory", _html(measure_table(lines), baseline)),
                folded("Every hyper-parameter", settings_of(rows, listed)),
                folded("Versions and devices", versions_of(rows)),
            ),
        ]
    )  # fmt: skip


def _html(table: ResultTable, baseline: str) -> str:
    return html_table(shortened(table, MOST_LISTED, baseline), sortable=True)


def _with_curves(drawn: Sequence[RunGroup]) -> list[RunGroup]:
    """The lines with as many runs as curves are read of; all of them, where there are no more."""
    runs = sum(len(line.rows) for line in drawn)
    each = MOST_CURVES // len(drawn) if runs > MOST_CURVES else runs
    return [RunGroup(line.label, line.rows[:each]) for line in drawn]


def _left_out(lines: Sequence[RunGroup], listed: Sequence[RunGroup], curves: Sequence[RunGroup]) -> str:
    """List the results that this page does not show, and where they are; nothing for an ordinary study."""
    parts = []
    if len(listed) < len(lines):
        parts.append(
            f"Tables, differences and settings show {len(listed):,} of {len(lines):,} lines, best by fused. All are "
            "printed by `equipoise report FOLDER --format csv`; every run is in results.jsonl."
        )
    most = max(len(line.rows) for line in curves)
    runs = {line.label: len(line.rows) for line in lines}
    if any(len(line.rows) < runs[line.label] for line in curves):
        parts.append(f"Curves over epochs are those of the first {most:,} runs of a line.")
    return " ".join(parts)


def _line_styles(lines: Sequence[RunGroup], baseline: str) -> dict[str, str]:
    """A colour and dashes for each label; the baseline in ink, as it is what one compares with."""
    others = [line.label for line in lines if line.label != baseline]
    return {baseline: "ink"} | {
        label: f"s{at % figures.STYLES} d{at // figures.STYLES % 4}" if at >= figures.STYLES else f"s{at}"
        for at, label in enumerate(others)
    }


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
