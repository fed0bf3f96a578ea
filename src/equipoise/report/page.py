"""The page: one HTML file that needs nothing but itself."""

import base64
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from equipoise.report import details, figures, table
from equipoise.report.aggregate import BASELINE, SHIPPED, Row, RunGroup, as_text, dig, headline, measures_of, modalities
from equipoise.report.columns import MISSING
from equipoise.report.differences import Difference, compared_with, differences_between
from equipoise.report.gain import gain
from equipoise.report.markup import data_table, folded, html_table, paragraph, section
from equipoise.report.notes import answer, caution
from equipoise.report.overview import overview
from equipoise.report.ranking import ranks_table
from equipoise.report.results import MOST_CURVES, Results, read
from equipoise.util.files import as_shown, write_atomic

# Hundreds of charts help nobody, and would not fit a page one can send; nor would thousands of lines.
MOST_DRAWN = 40
MOST_LISTED = 500
MEASURES = {
    "{} as shipped": ("test", SHIPPED),
    "{} as shipped, under faults": ("test", "faults", "mean", SHIPPED),
    "fused {}": ("test", "fused"),
    "fused {} under faults": ("test", "faults", "mean", "fused"),
}
"""Measures that methods are compared by, with a place for the metric's name."""


def write_page(folder: str | Path | Results, command: str | None = None, baseline: str = BASELINE) -> Path:
    """Write ``report.html`` into a folder of results: one file, no network, light and dark.

    Args:
        folder: The folder given to ``equipoise compare --out``, or what `read` has read there.
        command: The command line that made the results, shown under "How to repeat it".
        baseline: The label that the others are compared with.

    Returns:
        The path of the page.
    """
    results = folder if isinstance(folder, Results) else read(folder)
    by_data = results.by_data()
    template, style, script = (
        files("equipoise.report").joinpath(f"page.{ending}").read_text("utf-8") for ending in ("html", "css", "js")
    )
    text = Template(template).substitute(
        title=escape(f"Equipoise: {', '.join(by_data)}"),
        style=style,
        script=script,
        # Only this very style and script may act: a browser refuses whatever else might have slipped in.
        style_hash=_hash(style),
        script_hash=_hash(script),
        warning=paragraph(results.warning or "", "warning"),
        main=_overview(results, baseline)
        + "".join(_study(f"d{at}", data, rows, results, baseline) for at, (data, rows) in enumerate(by_data.items())),
        repeat=_repeat(results, command),
    )
    return write_atomic(results.folder, "report.html", text.encode("utf-8", "replace"))


def _overview(results: Results, baseline: str) -> str:
    """Write the table of methods × data sets, where there are several."""
    if len(results.groups) < 2:
        return ""
    whole = table.shortened(overview(results, baseline), MOST_LISTED, baseline)
    ranks = ranks_table(results)
    ranked = html_table(table.shortened(ranks, MOST_LISTED), sortable=True) if ranks else ""
    return section("overview", "All data sets", html_table(whole, sortable=True), ranked)


def _study(identity: str, data: str, rows: Sequence[Row], results: Results, baseline: str) -> str:
    """Write everything about one data set, the answer first."""
    groups, names = results.groups[data], modalities(rows)
    head = headline(groups)
    differences = {
        title.format(head.label): differences_between(groups, baseline, path, results)
        for title, path in measures_of(groups, MEASURES).items()
    }
    shipped, under_faults, *_ = differences.values()
    baseline = compared_with(shipped, baseline)
    drawn, listed = (
        [group for at, group in enumerate(groups) if at < most or group.label == baseline]
        for most in (MOST_DRAWN, MOST_LISTED)
    )
    curves = _with_curves(drawn)
    labels = {group.label for group in listed}
    shown = {title: [one for one in measured if one.label in labels] for title, measured in differences.items()}
    answers = [*(gain(groups, results) or ()), answer(groups, shipped, baseline, f"{head.label} as shipped")]
    if under_faults:
        answers.append(answer(groups, under_faults, baseline, f"{head.label} as shipped, under sensor faults"))
    few_drawn = f"Charts show the {MOST_DRAWN} best methods; the tables show all."
    asides = [caution(shipped), few_drawn if len(drawn) < len(groups) else ""]
    asides.append(_left_out(groups, listed, curves))

    def html(whole: table.ResultTable) -> str:
        return html_table(table.shortened(whole, MOST_LISTED, baseline), sortable=True)

    missing = html(details.missing_table(groups, names))
    ways = (
        "A missing sensor, answered side by side: its input set to zero or to the training mean (fused prediction), or "
        "left out of the committee. Modality dropout, where it was run, is a line of its own."
    )
    heading = f'<h2 id="{identity}">{escape(_question(groups, shipped, baseline, data))}</h2>'
    said = [*map(paragraph, answers), *(paragraph(text, "quiet") for text in asides)]
    sections = {
        ("table", "The table"): [html(table.main_table(rows, data, baseline, groups=groups, results=results))],
        ("differences", "Differences to joint training"): [
            figures.difference_plots(f"{identity}-difference", shown, head)
        ],
        ("epochs", f"{head.label[:1].upper()}{head.label[1:]} over epochs"): [
            figures.headline_over_epochs(f"{identity}-epoch", results, curves, head)
        ],
        ("balance", "What the balancers did"): [
            figures.balancing_over_epochs(f"{identity}-balancing", results, curves)
        ],
        ("attention", "Attention over epochs"): [
            figures.attention_over_epochs(f"{identity}-attention", results, curves)
        ],
        ("faults", "Sensor faults"): [
            figures.noise_curves(f"{identity}-noise", drawn, _styles(drawn, baseline), head),
            paragraph(ways if missing else "", "quiet"),
            missing,
            folded("Every fault, fused", html_table(details.fault_table(drawn, "fused"))),
            folded("Every fault, committee", html_table(details.fault_table(drawn, "committee"))),
        ],
        ("time", "Training time"): [figures.time_per_step(f"{identity}-step", drawn)],
        ("more", "In detail"): [
            folded("Each modality alone, by every protocol", html(details.protocol_table(groups, names))),
            folded("F1, calibration, loss, worst fault, t, memory", html(details.measure_table(groups))),
            folded("Every hyper-parameter", _settings_tables(rows, listed)),
            folded("Versions and devices", _versions_table(rows)),
        ],
    }
    return f'<section class="answer" aria-labelledby="{identity}">{heading}{"".join(said)}</section>' + "".join(
        section(f"{identity}-{name}", title, *content) for (name, title), content in sections.items()
    )


def _question(groups: Sequence[RunGroup], differences: Sequence[Difference], baseline: str, data: str) -> str:
    if differences:
        return f"Which methods beat joint training ({baseline}) on {data}?"
    return f"How good is {groups[0].label} on {data}?" if len(groups) == 1 else f"Which method is best on {data}?"


def _with_curves(drawn: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups with as many runs as curves are read of; all of them, where there are no more."""
    runs = sum(len(group.rows) for group in drawn)
    most = MOST_CURVES // len(drawn) if runs > MOST_CURVES else runs
    return [RunGroup(group.label, group.rows[:most]) for group in drawn]


def _left_out(groups: Sequence[RunGroup], listed: Sequence[RunGroup], curves: Sequence[RunGroup]) -> str:
    """List the results that this page does not show, and where they are; nothing for an ordinary study."""
    parts = []
    if len(listed) < len(groups):
        parts.append(
            f"Tables, differences and settings show {len(listed):,} of {len(groups):,} lines, the best. All are "
            "printed by `equipoise report FOLDER --format csv`; every run is in results.jsonl."
        )
    runs = {group.label: len(group.rows) for group in groups}
    if any(len(group.rows) < runs[group.label] for group in curves):
        most = max(len(group.rows) for group in curves)
        parts.append(f"Curves over epochs are those of the first {most:,} runs of a line.")
    return " ".join(parts)


def _styles(groups: Sequence[RunGroup], baseline: str) -> dict[str, str]:
    """Return a colour and dashes for each label; the baseline in ink, as it is what one compares with."""
    others = (group.label for group in groups if group.label != baseline)
    styles = {
        label: f"s{at % figures.STYLES}" + (f" d{at // figures.STYLES % 4}" if at >= figures.STYLES else "")
        for at, label in enumerate(others)
    }
    return {baseline: "ink", **styles}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


# -- how to repeat it --


def _repeat(results: Results, command: str | None) -> str:
    """Write how to make the same results, and this page, again."""

    def code(text: str) -> str:
        return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'

    made = code(command) if command else paragraph("The command that made these results was not passed on.")
    again = paragraph("This page again, from the results in that folder:")
    report = code(f"equipoise report {shlex.quote(as_shown(results.folder))}")
    return section("repeat", "How to repeat it", made, again, report)


def _settings_tables(rows: Sequence[Row], groups: Sequence[RunGroup]) -> str:
    """Write the settings all runs share, then those of each group."""
    common = _values(rows, "run")
    shared = {name: values for name, values in common.items() if len(values) == 1}
    own = []
    for group in groups:
        chosen = _values(group.rows, "params")
        chosen |= {name: values for name, values in _values(group.rows, "run").items() if name not in shared}
        own += [(group.label, *pair) for pair in _joined(chosen) or [(MISSING, MISSING)]]
    return data_table("Settings of all runs", ["setting", "value"], _joined(shared)) + data_table(
        "Settings of each method", ["method", "setting", "value"], own
    )


def _versions_table(rows: Sequence[Row]) -> str:
    """Write versions, devices and threads of the runs."""
    values = _values(rows, "versions")
    values |= {name: _distinct(row.get(name) for row in rows) for name in ("device", "threads")}
    values["runs side by side"] = _distinct(dig(row, "timing", "workers") for row in rows)
    return data_table("Where the runs ran", ["what", "value"], _joined(values))


def _values(rows: Iterable[Row], part: str) -> dict[str, list[str]]:
    """Return each setting with the values it had."""
    parts = (row.get(part) or {} for row in rows)
    different = list({id(settings): settings for settings in parts}.values())  # equal settings are shared by rows
    names = dict.fromkeys(name for settings in different for name in settings)
    return {name: _distinct(settings.get(name) for settings in different) for name in names}


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(MISSING if value is None else as_text(value) for value in values))


def _joined(values: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, ", ".join(texts)) for name, texts in values.items()]
