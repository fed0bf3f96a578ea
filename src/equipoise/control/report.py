"""Report of the peg-in-hole study: what came out in words, its tables and figures, a film, and one offline page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from equipoise.control import figures
from equipoise.control.conditions import CONDITIONS
from equipoise.control.figures import Drawn
from equipoise.control.film import FilmedEpisode, write_gif
from equipoise.control.lines import (
    episodes,
    is_joint,
    joint_line,
    lines_of,
    paired,
    success,
    success_rate,
    titled,
    tried,
)
from equipoise.control.tables import committee_gain, control_tables, difference_table, imbalance_in_words, in_numbers
from equipoise.report.aggregate import RunGroup, as_text, settings, varying
from equipoise.report.columns import MISSING
from equipoise.report.differences import Difference
from equipoise.report.headline import Row
from equipoise.report.markup import data_table, folded, html_table, paragraph, section
from equipoise.report.notes import MOST_ANSWERED, listed, plural
from equipoise.report.table import ResultTable
from equipoise.util.files import write_atomic

PAGE, FILM = "control.html", "control.gif"
MOST_GAINS = 3  # in a sentence
STYLE = """
.film img { max-width: 100%; height: auto; border: 1px solid var(--rule); background: #fff; }
.drawn { margin: 1rem 0; }
.drawn svg { display: block; }
.lead { font-weight: 600; }
"""


def write_report(
    rows: Iterable[Row], folder: Path, *, recordings: Sequence[FilmedEpisode] = (), command: str = ""
) -> Path:
    """Write ``control.html``, one page that needs nothing but itself, and its figures and film as files beside it.

    Args:
        rows: One per trained policy, as the study keeps them.
        folder: Where to; it exists.
        recordings: Episodes of the film, in the order in which they are shown; none for no film.
        command: As it was typed.

    Returns:
        The path of the page.

    Raises:
        BadInput: If no row is finished.
    """
    rows = list(rows)
    lines, tables = lines_of(rows), control_tables(rows)
    drawn = figures.draw_all(lines, recordings, folder)
    film = write_gif(recordings, folder / FILM) if recordings else None
    template, style, script = (
        files("equipoise.report").joinpath(f"page.{ending}").read_text("utf-8") for ending in ("html", "css", "js")
    )
    style += STYLE
    text = Template(template).substitute(
        title="Equipoise: peg in hole, in closed loop",
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        warning=paragraph(_mixed(lines), "warning"),
        main=_main(lines, tables, drawn, recordings, film),
        repeat=_repeat(command),
    )
    return write_atomic(folder, PAGE, text.encode("utf-8", "replace"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


# -- the parts of the page --


def _main(
    lines: Sequence[RunGroup],
    tables: Mapping[str, ResultTable],
    drawn: Mapping[str, Drawn],
    recordings: Sequence[FilmedEpisode],
    film: Path | None,
) -> str:
    def table(name: str) -> str:
        return html_table(tables[name], sortable=True) if name in tables else ""

    def figure(name: str) -> str:
        return _figure(name, drawn[name]) if name in drawn else ""

    first, *others = answers(lines)
    said = paragraph(first, "lead") + "".join(map(paragraph, others)) + paragraph(_caution(lines), "quiet")
    heading = '<h2 id="answer">Which way of training puts the peg into the hole?</h2>'
    parts = {
        ("film", "The task on film"): [paragraph(_TASK), _film(recordings, film), figure("force")],
        ("success", "Success in every condition"): [table("success"), figure("success")],
        ("differences", "Differences to joint training"): [table("differences")],
        ("sensors", "What each sensor is worth"): [table("sensors"), table("imbalance")],
        ("swap", "What each sensor is followed for"): [
            figure("swap"),
            folded("The same as a table, with intervals", table("swap")),
        ],
        ("failures", "When the camera fails"): [table("committee"), table("monitor")],
        ("protocol", "How it was measured"): [_list(protocol(lines))],
        ("more", "In detail"): [
            folded("Time to success", table("time")),
            folded("Force at the wrist", table("force")),
            folded("Error on validation demonstrations", table("validation")),
            folded("Every setting, versions and devices", _settings(lines)),
        ],
    }
    return f'<section class="answer" aria-labelledby="answer">{heading}{said}</section>' + "".join(
        section(name, title, *content) for (name, title), content in parts.items() if any(content)
    )


_TASK = (
    "A gantry moves a peg (orange) over a plate to a square hole that is 0.5 to 1 mm wider than the peg on each side. "
    "The policy commands a velocity 20 times a second. The camera shows where the hole is; proprioception tells where "
    "the peg is; only the force at the wrist tells of the rim of the hole, and of a jam, which takes a hard push."
)


def _film(recordings: Sequence[FilmedEpisode], film: Path | None) -> str:
    if film is None:
        return ""
    content = base64.b64encode(film.read_bytes()).decode("ascii")
    alternative = "; ".join(_recorded(one) for one in recordings)
    about = (
        "Real time, as seen from outside. Bar: force at the wrist; the mark is the push to which a jam gives way. "
        f"Orange frame: a sensor has failed. From left to right: {alternative}."
    )
    picture = f'<img src="data:image/gif;base64,{content}" alt="{escape(alternative)}">'
    # A reader whom movement disturbs can fold it away.
    opened = f"<details open><summary>The film</summary>{picture}</details>"
    return f'<figure class="film">{opened}<figcaption>{escape(about)}</figcaption></figure>'


def _recorded(one: FilmedEpisode) -> str:
    line = f"{one.line}, " if one.line else ""
    result = "the peg goes in" if one.success else "the peg does not go in"
    return f"{line}{titled(one.condition)}: {result} ({one.seconds:.1f} s)"


def _figure(name: str, drawn: Drawn) -> str:
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(drawn.title)}">'
    picture = figures.inline(name, drawn)
    return f'<figure class="drawn"><figcaption>{escape(drawn.caption)}</figcaption>{box}{picture}</div></figure>'


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _repeat(command: str) -> str:
    code = f'<pre tabindex="0"><code>{escape(command)}</code></pre>' if command else ""
    return section("repeat", "How to repeat it", code)


# -- what came out, in words --


def answers(lines: Sequence[RunGroup]) -> list[str]:
    """Say what came out; "clear" is a difference whose paired 95 % interval leaves out zero.

    Args:
        lines: As `lines_of` returns them.

    Returns:
        The first sentence, and those after it.
    """
    said = [_best(lines), *_clear(lines), imbalance_in_words(lines), _committee(lines)]
    return [sentence for sentence in said if sentence]


def _best(lines: Sequence[RunGroup]) -> str:
    """Name the line with the highest rate in clean episodes, and what it may claim over joint training."""
    first = lines[0]
    rate, base, clean = success(first, "clean"), joint_line(first, lines), partial(success_rate, "clean")
    if rate is None:
        return "No policy was tried in clean episodes."
    ends = (
        ""
        if rate.low is None or rate.high is None
        else f", 95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %"
    )
    number = f"{100 * rate.mean:.1f} % of clean episodes{ends}"
    if len(lines) == 1:
        return f"{first.label} puts the peg in in {number}."
    most = f"{first.label} puts the peg in most often ({number})"
    if base is None:
        rest = "it is joint training itself" if is_joint(first) else "joint training was not run beside it"
        return f"{most}; {rest}."
    difference = paired(first, clean, base, clean)
    if difference is None:
        return f"{most}; it shares no training seed with joint training ({base.label})."
    verdict = {
        "better": "clearly more often than",
        "worse": "clearly less often than",
        "no clear difference": "which is not clearly different from",
        "too few to tell": "with too few training seeds for a comparison with",
    }[difference.verdict]
    return f"{most}, {verdict} joint training ({base.label}): {in_numbers(difference, ' points', 100)}."


def _clear(lines: Sequence[RunGroup]) -> list[str]:
    """List the lines and conditions with a clear difference to joint training."""
    table = difference_table(lines)
    if not table.labels or not table.columns:
        return []
    if max(len(line.rows) for line in lines) < 2:
        return ["There is one training seed of each line: no difference to joint training can be called clear."]
    found: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for label, cells in zip(table.labels, table.cells, strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            if column.kind == "difference" and len(cell.raw) == 3 and None not in cell.raw:
                _, low, high = (end for end in cell.raw if end is not None)
                if low > 0 or high < 0:
                    found[low > 0].setdefault(label, []).append(column.title)
    if not found[True] and not found[False]:
        return ["No line is clearly better or worse than joint training in any condition."]
    words = {True: "Clearly more success than joint training: ", False: "Clearly less success: "}
    return [
        words[better]
        + listed([f"{label} ({', '.join(names)})" for label, names in own.items()], "; ", MOST_ANSWERED)
        + "."
        for better, own in found.items()
        if own
    ]


def _committee(lines: Sequence[RunGroup]) -> str:
    """Say for which lines the committee goes on better than the fused head once the camera is lost."""
    gains = [gain for line in lines if (gain := committee_gain(line))]
    clear: dict[str, list[Difference]] = {"better": [], "worse": []}
    for gain in gains:
        if gain.verdict in ("better", "worse"):
            clear[gain.verdict].append(gain)
    if not gains or all(gain.verdict == "too few to tell" for gain in gains):
        return ""
    parts = [
        f"clearly {more} than the fused head for "
        + listed([f"{gain.label} ({in_numbers(gain, ' points', 100)})" for gain in own], "; ", MOST_GAINS)
        for more, own in (("more often", clear["better"]), ("less often", clear["worse"]))
        if own
    ]
    if not parts:
        return "Once the camera is lost, committee and fused head do not differ clearly for any line."
    rest = "" if sum(map(len, clear.values())) == len(gains) else "; for the others there is no clear difference"
    return f"Once the camera is lost, the committee succeeds {', and '.join(parts)}{rest}."


def _caution(lines: Sequence[RunGroup]) -> str:
    seeds = sorted({len(line.rows) for line in lines})
    few = "Intervals over so few seeds are wide. " if 1 < seeds[-1] < 5 else ""
    many = f"{plural(len(lines), 'line')} × {plural(len(tried(lines)), 'condition')}"
    return (
        f"{few}A difference is called clear where its 95 % interval, paired by training seed, leaves out zero; nothing "
        f"is corrected for the number of comparisons ({many}). All this is about one simulated task."
    )


def _mixed(lines: Sequence[RunGroup]) -> str:
    """Warn of rows that are not about the same task."""
    tasks = {as_text(row.get("task")) for line in lines for row in line.rows}
    if len(tasks) == 1:
        return ""
    return (
        f"These policies are of {len(tasks)} different tasks or sets of demonstrations; their numbers do not compare."
    )


# -- how it was measured --


def protocol(lines: Sequence[RunGroup]) -> list[str]:
    """Return what a reader has to know to trust the numbers, a few lines."""
    row = lines[0].rows[0]
    task, run = row.get("task") or {}, row.get("run") or {}
    seeds = sorted({row["seed"] for line in lines for row in line.rows})
    counts = {len(episodes(row, name, "success")) for line in lines for row in line.rows for name in row["rollouts"]}
    different = varying([row for line in lines for row in line.rows])
    shared = [name for name in ("epochs", "batch", "lr", "optimizer") if name in run and name not in different]
    training = ", ".join(f"{name} {as_text(run[name])}" for name in shared)
    said = [
        f"Demonstrations: {task.get('episodes', MISSING)} episodes of a scripted expert, the same for every line; task "
        f"version {task.get('version', MISSING)}, pictures by {task.get('renderer', MISSING)}, MuJoCo "
        f"{task.get('mujoco', MISSING)}.",
        f"Training: behaviour cloning of chunks of actions; for every line {training}." if training else "",
        f"Training seeds: {', '.join(map(str, seeds))}. Nothing was selected on rollouts.",
        f"Rollouts: {' or '.join(f'{count:,}' for count in sorted(counts))} new episodes in each condition, the same "
        "for every policy.",
        *(f"{titled(name)}: {_describe(name)}" for name in tried(lines) if name in CONDITIONS),
    ]
    return [one for one in said if one]


def _describe(name: str) -> str:
    """Describe a condition in words."""
    one = CONDITIONS[name]
    since = f"from step {one.since} on" if one.since else "from the first step on"
    decides = "the committee decides" if one.decision == "committee" else "the fused head decides"
    said = [
        "holes further out than any in the demonstrations" if one.holes == "unseen" else "",
        f"the {one.dead} gives zeros {since}, and the policy is not told" if one.dead else "",
        f"the {one.lost} is missing {since}, the policy is told, and {decides}" if one.lost else "",
        f"every observation is {one.delay} control steps late" if one.delay else "",
        "a monitor watches the heads, and the committee goes on without what it drops" if one.monitored else "",
    ]
    return ("; ".join(filter(None, said)) or "every sensor works, holes as in the demonstrations") + "."


def _settings(lines: Sequence[RunGroup]) -> str:
    """Write the settings that all share, those of each line, and where they ran."""
    rows = [row for line in lines for row in line.rows]
    different = set(varying(rows))
    shared = [(name, as_text(value)) for name, value in settings(rows[0]).items() if name not in different]
    own = [
        (line.label, name, as_text(value))
        for line in lines
        for name, value in settings(line.rows[0]).items()
        if name in different
    ]
    versions = {
        name: {as_text(row["versions"][name]) for row in rows if name in (row.get("versions") or {})}
        for name in dict.fromkeys(name for row in rows for name in row.get("versions") or {})
    }
    versions["device"] = {str(row.get("device", MISSING)) for row in rows}
    where = [(name, ", ".join(sorted(values))) for name, values in versions.items()]
    return (
        data_table("Settings of all policies", ["setting", "value"], shared)
        + (data_table("Settings that differ", ["line", "setting", "value"], own) if own else "")
        + data_table("Where they ran", ["what", "value"], where)
    )
