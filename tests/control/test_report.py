"""The report of the peg-in-hole study: numbers worked out by hand, intervals against scipy, and what is missing."""

import csv
import io
import json
import re
import statistics
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from control.made_up import rate, rolled, row
from equipoise.control.conditions import CONDITIONS
from equipoise.control.figures import draw_all, inline
from equipoise.control.film import FilmedEpisode
from equipoise.control.lines import alone_line, joint_line, lines_of, success, wilson
from equipoise.control.report import answers, protocol, write_report
from equipoise.control.tables import control_tables, imbalance_in_words
from equipoise.report.formats import FORMATS, render
from equipoise.util.errors import BadInput
from report.chromium import Chromium, find

CAMERA = ("camera",)
EVERYTHING = {name: rate(4) for name in CONDITIONS}
Rows = list[dict[str, Any]]


def study(seeds: int = 3, **rates: list[int]) -> Rows:
    """Lines with so many successes of ten clean episodes, by training seed; underscores of a name are spaces."""
    return [
        row(
            line.replace("_", " "),
            seed,
            {"clean": rate(count)},
            method="msl" if line == "camera_alone" else None,
            sensors=CAMERA if line == "camera_alone" else ("proprioception", "camera", "force"),
        )
        for line, counts in rates.items()
        for seed, count in enumerate(counts[:seeds])
    ]


def cell(rows: Rows, table: str, line: str, column: str) -> tuple[float | None, ...]:
    return control_tables(rows)[table].at(line, column).raw


# -- intervals --


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (0, 20), (1, 1), (7, 20), (20, 20), (99, 100), (333, 1000)])
def test_wilson_is_that_of_scipy(successes: int, trials: int) -> None:
    wanted = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    share, low, high, *_ = wilson(successes, trials)
    assert low is not None
    assert high is not None
    assert share == successes / trials
    assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert 0 <= low <= share <= high <= 1


def test_several_seeds_are_students_t_over_their_means() -> None:
    counts = [3, 5, 6, 8]
    found = cell(study(4, mimo=counts), "success", "mimo", "clean")
    shares = [count / 10 for count in counts]
    low, high = stats.t.interval(0.95, 3, statistics.mean(shares), stats.sem(shares))
    assert found == pytest.approx((0.55, low, high))


def test_a_rate_has_no_end_beyond_0_and_100_percent() -> None:
    assert cell(study(2, mimo=[8, 10], msl=[0, 2]), "success", "mimo", "clean")[2] == 1.0
    assert cell(study(2, mimo=[8, 10], msl=[0, 2]), "success", "msl", "clean")[1] == 0.0


def test_one_seed_is_wilson_over_its_episodes_and_says_so() -> None:
    rows = study(1, mimo=[7])
    assert cell(rows, "success", "mimo", "clean") == pytest.approx(wilson(7, 10)[:3])
    notes = " ".join(control_tables(rows)["success"].notes)
    assert "one training seed" in notes
    assert "Wilson" in notes
    assert "Student" not in notes
    several = " ".join(control_tables(study(2, mimo=[7, 8]))["success"].notes)
    assert "Student" in several
    assert "Wilson" not in several


# -- numbers of episodes --


def test_time_counts_successes_only_and_force_is_a_median() -> None:
    rolled_out = rolled([1, 0, 1, 0], steps=[20, 120, 40, 120], peak_force=[1.0, 9.0, 2.0, 30.0])
    rows = [row("mimo", 0, {"clean": rolled_out})]
    assert cell(rows, "time", "mimo", "clean")[0] == pytest.approx(30 * 0.05)
    assert cell(rows, "force", "mimo", "clean")[0] == pytest.approx(5.5)


def test_a_seed_without_a_success_has_no_time() -> None:
    rows = [row("mimo", 0, {"clean": rolled([1], steps=10)}), row("mimo", 1, {"clean": rolled([0], steps=120)})]
    assert cell(rows, "time", "mimo", "clean") == (0.5, None, None)
    assert cell(rows, "success", "mimo", "clean")[0] == 0.5


# -- pairs --


def test_differences_are_paired_by_training_seed() -> None:
    # The rates of both lines vary far more over seeds than their difference does.
    rows = study(3, mimo=[2, 5, 9], msl=[1, 4, 7])
    differences = [0.1, 0.1, 0.2]
    low, high = stats.t.interval(0.95, 2, statistics.mean(differences), stats.sem(differences))
    assert cell(rows, "differences", "mimo", "clean") == pytest.approx((0.4 / 3, low, high))
    assert cell(rows[::-1], "differences", "mimo", "clean") == pytest.approx((0.4 / 3, low, high))


def test_the_same_difference_in_all_seeds_is_no_interval() -> None:
    rows = study(2, mimo=[2, 6], msl=[1, 5])  # one episode more in each
    mean, low, high = cell(rows, "differences", "mimo", "clean")
    assert mean == pytest.approx(0.1)
    assert low is None
    assert high is None
    assert not any("Clearly" in sentence or "clearly more" in sentence for sentence in answers(lines_of(rows)))


def test_only_seeds_that_both_lines_have_are_pairs() -> None:
    rows = [*study(3, mimo=[9, 5, 6]), row("msl", 1, {"clean": rate(4)}), row("msl", 2, {"clean": rate(4)})]
    assert cell(rows, "differences", "mimo", "clean")[0] == pytest.approx(0.15)
    alone = [row("mimo", 0), row("msl", 1)]
    assert "differences" not in control_tables(alone)


def test_joint_training_of_the_same_fusion_is_what_a_line_is_compared_with() -> None:
    rows = [
        row("msl", 0, {"clean": rate(1)}),
        row("mimo", 0, {"clean": rate(2)}),
        row("msl, hybrid", 0, {"clean": rate(4)}, fusion="hybrid"),
        row("mimo, hybrid", 0, {"clean": rate(8)}, fusion="hybrid"),
        row("camera alone", 0, {"clean": rate(3)}, method="msl", sensors=CAMERA, fusion="hybrid"),
    ]
    lines = {line.label: line for line in lines_of(rows)}
    bases = {name: joint_line(line, list(lines.values())) for name, line in lines.items()}
    named = {name: base.label if base else None for name, base in bases.items()}
    wanted = {"mimo": "msl", "mimo, hybrid": "msl, hybrid", "camera alone": "msl", "msl": None, "msl, hybrid": None}
    assert named == wanted
    assert cell(rows, "differences", "mimo, hybrid", "clean")[0] == pytest.approx(0.4)
    assert control_tables(rows)["differences"].at("mimo", "base").main == "msl"


# -- what sensors are worth --


def imbalanced(probes: list[float], alone: list[float], without: list[int], clean: list[int]) -> Rows:
    joint = [
        row("msl", seed, {"clean": rate(9), "without_proprioception": rate(count)}, probe=probe)
        for seed, (probe, count) in enumerate(zip(probes, without, strict=True))
    ]
    single = [
        row("camera alone", seed, {"clean": rate(count)}, method="msl", sensors=CAMERA, probe=probe)
        for seed, (probe, count) in enumerate(zip(alone, clean, strict=True))
    ]
    return [*joint, *single]


def test_the_imbalance_check_is_paired_with_the_camera_alone() -> None:
    rows = imbalanced([5.0, 5.5, 6.1], [4.0, 4.4, 4.8], [2, 3, 4], [6, 7, 9])
    probes, rates = [1.0, 1.1, 1.3], [-0.4, -0.4, -0.5]
    for column, wanted in (("probe", probes), ("success", rates)):
        ends = stats.t.interval(0.95, 2, statistics.mean(wanted), stats.sem(wanted))
        assert cell(rows, "imbalance", "msl", column) == pytest.approx((statistics.mean(wanted), *ends))
    said = imbalance_in_words(lines_of(rows))
    assert said.startswith("The imbalance shows")
    assert "+1.13 mm" in said
    assert "−43.3 points" in said


@pytest.mark.parametrize(
    ("probes", "alone", "without", "clean", "said"),
    [
        ([5.0, 4.0, 5.0], [4.0, 5.0, 5.0], [5, 6, 5], [6, 5, 5], "does not show clearly"),
        ([3.0, 3.1, 3.0], [4.0, 4.0, 4.1], [5, 6, 5], [6, 5, 5], "does not show: "),
        ([5.0, 4.0, 5.0], [4.0, 5.0, 5.0], [1, 1, 2], [8, 9, 9], "the probe of the camera shows none"),
        ([3.0, 3.1, 3.0], [4.0, 4.0, 4.1], [1, 1, 2], [8, 9, 9], "the two measures disagree"),
        ([9.0], [1.0], [1], [9], "cannot be told from these trainings"),
    ],
)
def test_the_imbalance_is_claimed_where_intervals_allow_it(
    probes: list[float], alone: list[float], without: list[int], clean: list[int], said: str
) -> None:
    assert said in imbalance_in_words(lines_of(imbalanced(probes, alone, without, clean)))


def test_without_the_camera_alone_nothing_is_said_of_an_imbalance() -> None:
    rows = study(3, mimo=[1, 2, 3], msl=[1, 2, 2])
    assert alone_line(lines_of(rows)) is None
    assert imbalance_in_words(lines_of(rows)) == ""
    assert "imbalance" not in control_tables(rows)


def test_swaps_are_averaged_over_seeds_by_sensor_and_phase() -> None:
    rows = [row("mimo", 0), row("mimo", 1)]
    rows[0]["interventions"]["swap"]["camera"]["search"]["change"] = 0.2
    rows[1]["interventions"]["swap"]["camera"]["search"]["change"] = 0.6
    del rows[0]["interventions"]["swap"]["force"]["insert"]
    assert cell(rows, "swap", "mimo", "camera.search")[0] == pytest.approx(0.4)
    assert cell(rows, "swap", "mimo", "force.insert")[0] == pytest.approx(0.3)


# -- when the camera fails --


def test_committee_minus_zeros_is_paired_within_a_line() -> None:
    rows = [
        row("mimo", seed, {"camera_lost_zero": rate(zero), "camera_lost_committee": rate(committee)})
        for seed, (zero, committee) in enumerate([(1, 4), (3, 5), (2, 6)])
    ]
    gains = [0.3, 0.2, 0.4]
    ends = stats.t.interval(0.95, 2, 0.3, stats.sem(gains))
    assert cell(rows, "committee", "mimo", "difference") == pytest.approx((0.3, *ends))
    assert "clearly more often than the fused head for mimo" in " ".join(answers(lines_of(rows)))


def test_the_monitor_by_hand() -> None:
    watched = rolled(
        [0, 0, 1, 1, 1, 0],
        steps=[120, 120, 40, 14, 60, 120],
        # Right after 2 and 4 steps, too early, never needed, another sensor after the failure, never.
        dropped=["camera", "camera", "force", None, "force", None],
        dropped_at=[17, 19, 3, None, 20, None],
    )
    assert CONDITIONS["monitored"].since == 15
    rows = [row("mimo", 0, {"monitored": watched, "camera_black": rolled([0, 0, 0, 1, 0, 0])})]
    assert cell(rows, "monitor", "mimo", "monitored.false")[0] == pytest.approx(1 / 6)
    assert cell(rows, "monitor", "mimo", "found")[0] == pytest.approx(2 / 5)
    assert cell(rows, "monitor", "mimo", "delay")[0] == pytest.approx(0.15)
    assert cell(rows, "monitor", "mimo", "gain")[0] == pytest.approx(2 / 6)


def test_episodes_that_no_monitor_watched_are_no_evidence_of_quiet() -> None:
    assert "monitor" not in control_tables([row("mimo", 0, {"clean": rate(5)})])


# -- rows --


def test_unfinished_rows_are_left_out_and_the_last_of_a_training_counts() -> None:
    first, again, failed = row("mimo", 0, {"clean": rate(1)}), row("mimo", 0, {"clean": rate(9)}), row("msl", 0)
    failed["status"] = "failed"
    lines = lines_of([first, again, failed])
    assert [line.label for line in lines] == ["mimo"]
    assert cell([first, again, failed], "success", "mimo", "clean")[0] == 0.9


@pytest.mark.parametrize("rows", [[], [{**row("mimo"), "status": "failed"}]])
def test_no_finished_row_is_one_clear_message(rows: Rows, tmp_path: Path) -> None:
    for use in (control_tables, lambda given: write_report(given, tmp_path)):
        with pytest.raises(BadInput, match="expected at least one finished policy, found none"):
            use(rows)


def test_the_best_of_each_column_is_bold_and_lines_are_ordered_by_clean_success() -> None:
    table = control_tables(study(2, ew=[5, 5], mimo=[8, 9], msl=[2, 3]))["success"]
    assert table.labels == ("mimo", "ew", "msl")
    assert [line[0].best for line in table.cells] == [True, False, False]


def test_lines_and_columns_without_numbers_are_left_out() -> None:
    rows = [
        row("mimo", 0, {"clean": rate(5), "camera_lost_zero": rate(2), "camera_lost_committee": rate(3)}),
        row("camera alone", 0, {"clean": rate(5)}, method="msl", sensors=CAMERA),
    ]
    tables = control_tables(rows)
    assert tables["committee"].labels == ("mimo",)
    assert [column.key for column in tables["success"].columns] == [
        "clean",
        "camera_lost_zero",
        "camera_lost_committee",
    ]
    assert {"differences", "monitor"}.isdisjoint(tables)


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_holds_every_line(form: str) -> None:
    rows = [row(line, seed, EVERYTHING, probe=4.0 + seed) for line in ("mimo", "msl", "50 % & more") for seed in (0, 1)]
    text = render(form, control_tables(rows))
    if form == "json":
        assert {line["label"] for line in json.loads(text)[0]["lines"]} == {"mimo", "msl", "50 % & more"}
    elif form == "csv":
        own = [one for one in csv.DictReader(io.StringIO(text)) if one["data"] == "success"]
        assert {float(one["clean"]) for one in own} == {0.4}
    else:
        assert text.count("mimo") >= len(control_tables(rows))


# -- words --


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"mimo": [7, 8, 10], "msl": [5, 6, 7]}, "clearly more often than joint training (msl): +23.3 points"),
        ({"mimo": [9, 4, 9], "msl": [5, 6, 7]}, "which is not clearly different from joint training (msl)"),
        ({"mimo": [5, 6, 7], "msl": [7, 8, 9]}, "msl puts the peg in most often (80.0 %"),
        ({"mimo": [9], "msl": [1]}, "too few training seeds for a comparison"),
        ({"mimo": [9, 8], "ew": [1, 2]}, "joint training was not run beside it"),
        ({"mimo": [9, 8]}, "mimo puts the peg in in 85.0 % of clean episodes"),
    ],
)
def test_the_first_sentence_claims_no_more_than_the_interval(counts: dict[str, list[int]], said: str) -> None:
    assert said in answers(lines_of(study(3, **counts)))[0]


def test_clear_differences_are_listed_in_both_directions() -> None:
    said = answers(lines_of(study(3, mimo=[7, 8, 10], msl=[5, 6, 7], ew=[2, 3, 3], mgda=[5, 7, 6])))
    assert "Clearly more success than joint training: mimo (clean)." in said
    assert "Clearly less success: ew (clean)." in said
    assert not any("mgda" in sentence for sentence in said)


def test_one_training_seed_is_never_clear() -> None:
    said = " ".join(answers(lines_of(study(1, mimo=[10], msl=[0], camera_alone=[0]))))
    assert "can be called clear" in said
    assert "clearly" not in said


def test_the_protocol_says_what_was_shared_and_describes_each_condition() -> None:
    rows = [row("mimo", seed, EVERYTHING) for seed in (0, 1)]
    said = protocol(lines_of(rows))
    assert sum(": " in sentence for sentence in said) >= len(CONDITIONS)
    assert any("the camera gives zeros from step 15 on, and the policy is not told" in sentence for sentence in said)
    rows[1]["run"] = {**rows[1]["run"], "epochs": 5}
    assert not any("epochs" in sentence for sentence in protocol(lines_of(rows)))


# -- figures and the page --


def recording(*, won: bool, condition: str = "clean") -> FilmedEpisode:
    frames = np.full((3, 64, 64, 3), 200, np.uint8)
    force = np.linspace(0, 14, 40)
    return FilmedEpisode("mimo", condition, 7, frames, (0, 2, 4), force, won, None if condition == "clean" else 2)


@pytest.fixture(scope="module")
def rows() -> Rows:
    generator = np.random.default_rng(0)
    three = [
        row(line, seed, {name: rate(int(generator.integers(0, 11))) for name in CONDITIONS}, probe=generator.normal(5))
        for line in ("mimo", "msl", "<b>&</b>")
        for seed in range(2)
    ]
    return [*three, *(row("camera alone", seed, method="msl", sensors=CAMERA, probe=4.0) for seed in range(2))]


@pytest.fixture(scope="module")
def written(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recordings = [recording(won=True), recording(won=False), recording(won=True, condition="camera_lost_committee")]
    folder = tmp_path_factory.mktemp("report")
    return write_report(rows, folder, recordings=recordings, command="equipoise control --seeds 2")


class Seen(HTMLParser):
    """Everything that a page asks for, the names in it, and whether its tags are closed in order."""

    VOID = ("meta", "link", "img", "br", "use", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wants: list[str] = []
        self.names: list[str] = []
        self.styles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.wants += [given[key] or "" for key in ("src", "href", "xlink:href") if key in given]
        self.names += [given["id"] or ""] if "id" in given else []
        self.styles += "style" in given
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(text)
    assert seen.open == []
    assert all(one.startswith(("data:", "#")) for one in seen.wants), "a page of one file loads nothing"
    assert len(set(seen.names)) == len(seen.names), "two figures must not share a name"
    assert {one[1:] for one in seen.wants if one.startswith("#")} <= set(seen.names)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(seen.names)
    assert seen.styles == 0, "the page's policy refuses style attributes"
    assert any(one.startswith("data:image/gif;base64,") for one in seen.wants)
    assert "equipoise control --seeds 2" in text
    assert "<b>&</b>" not in text


def test_the_page_begins_with_the_answer(written: Path, rows: Rows) -> None:
    text = written.read_text(encoding="utf-8")
    first = answers(lines_of(rows))[0].split(" puts")[0].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert first in text
    assert text.index(first) < text.index("<table")


def test_without_a_film_there_is_none(tmp_path: Path) -> None:
    text = write_report(study(1, mimo=[3]), tmp_path).read_text(encoding="utf-8")
    assert "image/gif" not in text
    assert not (tmp_path / "control.gif").exists()
    assert "How to repeat it" not in text


def test_rows_of_different_tasks_are_warned_of(tmp_path: Path) -> None:
    one, other = row("mimo", 0), row("msl", 0)
    other["task"] = {**other["task"], "version": 2}
    assert "2 different tasks" in write_report([one, other], tmp_path).read_text(encoding="utf-8")
    assert "different tasks" not in write_report([one], tmp_path).read_text(encoding="utf-8")


def test_figures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    one, bare = row("mimo", 0), row("mimo", 0)
    bare["interventions"] = {"swap": {}, "probe_mm": None}
    lost = recording(won=True, condition="camera_lost_committee")
    assert [*draw_all(lines_of([one]), [recording(won=True), lost], tmp_path)] == ["success", "swap", "force"]
    assert [*draw_all(lines_of([bare]), [lost], tmp_path)] == ["success"]


def test_a_figure_in_a_page_has_the_colours_of_its_theme(rows: Rows, tmp_path: Path) -> None:
    drawn = draw_all(lines_of(rows), [recording(won=True), recording(won=False)], tmp_path)
    assert {"success", "swap", "force"} <= drawn.keys()
    for name, one in drawn.items():
        text = inline(name, one)
        assert one.path.read_text(encoding="utf-8").count("style=") > 10
        assert "style=" not in text
        assert "<style" not in text
        assert re.findall(r'(?:fill|stroke)="#[0-9a-f]{6}"', text) == []
        assert text.startswith("<svg")
        assert f'<title id="{name}-t">' in text


def test_the_same_rows_give_the_same_figures(tmp_path: Path) -> None:
    rows = study(2, mimo=[3, 4], msl=[1, 5])
    folders = (tmp_path / "a", tmp_path / "b")
    texts = [[one.path.read_bytes() for one in draw_all(lines_of(rows), [], folder).values()] for folder in folders]
    assert texts[0] == texts[1]


def test_success_of_a_line_without_the_condition_is_none() -> None:
    (line,) = lines_of([row("mimo", 0)])
    assert success(line, "unseen") is None


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find()
    if program is None:
        pytest.skip("NO BROWSER: the page was not opened. Type: apt-get install -y chromium")
    with Chromium(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_a_browser_opens_the_page_without_a_word(browser: Chromium, written: Path, width: int) -> None:
    browser.resize(width, "dark" if width == 390 else "light")
    browser.open(written.as_uri())
    said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert [event["params"] for event in browser.events if event["method"] in said] == []
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.run("document.querySelector('.film img').naturalWidth") > 100
    letters = """document.querySelector('.drawn [fill="var(--ink)"]')"""
    assert browser.run(f"getComputedStyle({letters}).fill") == browser.run("getComputedStyle(document.body).color")
