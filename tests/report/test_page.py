"""The page as text: whole, small, well-formed, harmless."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from equipoise.report import aggregate, read, tables, write_page
from equipoise.report.figures import headline_curves
from report.example import make_row, write_study

VOID = {"meta", "link", "path", "rect", "circle", "br"}
HOSTILE = "</title><script>alert('x')</script><img src=x onerror=alert(1)>\"'&"


class Checked(HTMLParser):
    """Fails on tags that do not balance; keeps what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag == "path":
            self.open.append(tag)
        self._keep(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.text += data

    def _keep(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]


def checked(path: Path) -> Checked:
    parser = Checked()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(params=[0, 3], ids=["seeds", "folds"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_page(write_study(tmp_path, folds=request.param, epochs=6), command="equipoise compare --data watch")


def test_the_page_is_well_formed(written: Path) -> None:
    found = checked(written)
    assert len(found.ids) == len(set(found.ids))
    tags = [tag for tag, _ in found.attributes]
    assert [tags.count(tag) for tag in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    references = {
        each
        for _, attributes in found.attributes
        for name in ("aria-labelledby", "aria-describedby")
        for each in (attributes.get(name) or "").split()
    }
    assert references <= set(found.ids)


def test_every_figure_has_title_description_axes_and_a_table(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    charts = re.findall(r'<svg role="img".*?</svg>', text)
    assert len(charts) > 10
    for chart in charts:
        assert re.search(r"<title id=[^>]*>[^<]+</title><desc id=[^>]*>[^<]+</desc>", chart)
        assert re.search(r'<text class="axis[^>]*>[^<]+</text>', chart)
    figures = re.findall(r"<figure>.*?</figure>", text)
    assert len(figures) == 5
    assert all("<figcaption>" in each and "<table>" in each for each in figures)


def test_every_table_has_a_caption_and_scoped_headers(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    found = re.findall(r"<table.*?</table>", text)
    assert all("<caption>" in each for each in found)
    assert all("scope=" in each for each in re.findall(r"<th\b[^>]*>", text))


def test_page_and_table_tell_the_same_numbers(written: Path) -> None:
    text = re.sub(r"\s+", " ", checked(written).text.replace("−", "-"))
    (table,) = tables(read(written.parent))
    for cells in table.cells:
        assert all(cell.text in text for cell in cells)
    assert all(note in text for note in table.notes)


def test_the_page_loads_and_runs_nothing_foreign(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert "http:" not in text
    assert "https:" not in text
    found = checked(written).attributes
    assert not [
        name for _, attributes in found for name in attributes if name.startswith("on") or name in ("src", "style")
    ]
    assert {attributes["href"] for _, attributes in found if "href" in attributes} == {"data:,", "#main"}


@pytest.mark.parametrize("where", ["label", "data", "split", "command", "setting", "sensor", "selected"])
def test_text_from_data_is_only_text(tmp_path: Path, where: str) -> None:
    rows = [make_row(label, seed, epochs=2) for label in ("msl", "mimo") for seed in range(2)]
    for row in rows:
        row["run"] |= {HOSTILE: HOSTILE} if where == "setting" else {}
        row["selected"] = {"by": HOSTILE} if where == "selected" else row["selected"]
        row |= {where: HOSTILE} if where in ("data", "split") else {}
        row["label"] = row["label"] + HOSTILE if where == "label" and row["label"] == "mimo" else row["label"]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    if where == "sensor":
        lines = lines.replace('"gyroscope"', json.dumps(HOSTILE))
    (tmp_path / "results.jsonl").write_text(lines, encoding="utf-8")
    path = write_page(tmp_path, command=HOSTILE if where == "command" else None)
    found = checked(path)
    assert [tag for tag, _ in found.attributes].count("script") == 1
    assert "img" not in [tag for tag, _ in found.attributes]
    shown = HOSTILE[:19] if where == "split" else HOSTILE  # a fingerprint is shown by its first digits
    assert shown in found.text


def test_a_big_study_stays_a_small_page(tmp_path: Path) -> None:
    labels = [f"mimo (penalty={penalty}, smoothing={smoothing})" for penalty in range(12) for smoothing in range(10)]
    path = write_page(write_study(tmp_path, ["msl", *labels], seeds=1, epochs=100))
    assert path.stat().st_size < 2_000_000


def test_a_nearly_empty_study_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"schema": 1, "config": "a", "method": "msl"}\n{"torn', encoding="utf-8")
    text = checked(write_page(tmp_path)).text
    assert "How good is msl on data?" in text
    assert "joint training" not in text
    assert "line 2 is torn" in text
    assert "was not passed on" in text


def test_two_data_sets_share_a_page(tmp_path: Path) -> None:
    for data in ("watch", "avmnist"):
        write_study(tmp_path, ["msl", "mimo"], seeds=2, epochs=2, data=data)
    found = checked(write_page(tmp_path))
    assert len(found.ids) == len(set(found.ids))
    assert "joint training (msl) on avmnist?" in found.text


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    path = write_page(write_study(tmp_path, ["msl", "mimo"], epochs=3))
    before = path.read_bytes()
    results = tmp_path / "results.jsonl"
    results.write_text("".join(reversed(results.read_text("utf-8").splitlines(keepends=True))), encoding="utf-8")
    assert write_page(tmp_path).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def test_a_head_that_nothing_trained_is_no_curve(tmp_path: Path) -> None:
    """Earlier versions recorded one for the ensemble; the accuracy of its vote is in the tables."""
    write_study(tmp_path, ["msl", "ensemble"], epochs=4)
    results = read(tmp_path)
    joint, vote = (next(line for line in aggregate(results.rows) if line.label == name) for name in ("msl", "ensemble"))
    assert any("fused" in epoch["validation"] for epoch in results.curves[vote.rows[0]["config"]])
    assert "fused" in headline_curves(results, joint)
    assert "fused" not in headline_curves(results, vote)
    assert vote.fused is not None


def test_times_of_parts_and_of_trained_steps_stand_apart(tmp_path: Path) -> None:
    """By hand: parts of 1, 2, 3 and 4 ms, t of 5 ms beside 4 of a bare step and 2.5 of MSL, and a step of 5 ms."""
    row = make_row("mimo")
    parts = dict(zip(("forward", "backward", "balance", "update"), (0.001, 0.002, 0.003, 0.004), strict=True))
    row["seconds"] = {**parts, "step": 0.005, "total": 1.0}
    times = zip(("own", "bare", "msl"), (0.005, 0.004, 0.0025), strict=True)
    row["timing"]["t"] = {line: {"wall": seconds, "cpu": 0.003} for line, seconds in times}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    text = checked(write_page(tmp_path)).text
    assert "timed after training, on a copy. Methods that work on gradients balance inside the backward pass." in text
    heads = r"parts together\s*t\s*t \(× a bare step\)\s*t \(× MSL\(\).attach\)\s*step as trained"
    assert re.search(
        heads + r"\s*mimo\s*1\.00\s*2\.00\s*3\.00\s*4\.00\s*10\.00\s*5\.00\s*1\.25\s*2\.00\s*5\.00 !", text
    )
    assert "Times NOT TO BE TRUSTED: taken under 2 runs side by side" in text
    row["timing"] |= {"workers": 1, "load": {**row["timing"]["load"], "workers": 1}}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert "NOT TO BE TRUSTED" not in checked(write_page(tmp_path)).text


def test_attention_is_drawn_where_a_run_recorded_it(tmp_path: Path) -> None:
    """By hand: two runs of shares 0.2 and 0.4 for one sensor have a mean of 30 %; a method without a trunk has none."""
    write_study(tmp_path, ["msl", "mimo"], seeds=2, epochs=3)
    assert "Attention over epochs" not in checked(write_page(tmp_path)).text
    mimo = [row for row in read(tmp_path).rows if row["method"] == "mimo"]
    for row, share in zip(mimo, (0.2, 0.4), strict=True):
        curves = tmp_path / "runs" / row["config"].removeprefix("sha256:")[:12] / "curves.jsonl"
        shares = {"accelerometer": share, "gyroscope": 1 - share}
        epochs = [json.loads(line) | {"attention": shares} for line in curves.read_text("utf-8").splitlines()]
        curves.write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs), encoding="utf-8")
    page = checked(write_page(tmp_path)).text
    assert "Attention over epochs" in page
    assert "At the last epoch: accelerometer 30.0 %, gyroscope 70.0 %." in page
    assert page.count("Share of attention over epochs") == 1  # one chart: that of mimo
