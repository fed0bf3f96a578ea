"""The page in a real browser: it is quiet, sorts, changes its theme, and fits a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.report import write_page
from report.chromium import Chromium, find
from report.example import write_study

pytestmark = pytest.mark.slow
if find() is None:
    pytest.skip("NO BROWSER: the page was not opened. Type: apt-get install -y chromium", allow_module_level=True)
FUSED = "table[data-sortable] thead th:nth-child(2)"
COLUMN = (
    "[...document.querySelectorAll('table[data-sortable]')[0].tBodies[0].rows].map(row => row.cells[{}].textContent)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(find() or "", tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_study(tmp_path_factory.mktemp("study"), folds=4, epochs=10)
    write_study(folder, ["<script>console.error('label')</script>", "mwmwmwmwmwmwmwmwmwmw"], folds=4, epochs=10)
    return write_page(folder, command="equipoise compare --data watch")


@pytest.fixture
def opened(browser: Chromium, written: Path) -> Iterator[Chromium]:
    browser.resize(1200)
    browser.open(written.as_uri())
    yield browser
    assert complaints(browser) == []
    assert requests(browser) <= {written.as_uri(), "data:,"}


def complaints(browser: Chromium) -> list[object]:
    """Whatever the page or the browser had to say."""
    names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
    return [event["params"] for event in browser.events if event["method"] in names]


def requests(browser: Chromium) -> set[str]:
    return {
        event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"
    }


def fused_column(browser: Chromium) -> list[float]:
    """The fused accuracies from top to bottom, without what is missing."""
    cells = browser.run(COLUMN.format(1))
    return [float(cell.split()[0]) for cell in cells if not cell.startswith("–")]


def test_complaints_and_requests_would_be_seen(browser: Chromium, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error(1); nothing()</script><img src='missing.png'>", encoding="utf-8")
    browser.open(bad.as_uri())
    assert len(complaints(browser)) >= 2
    assert any("missing.png" in url for url in requests(browser))


def test_a_click_on_a_heading_sorts(opened: Chromium) -> None:
    for order in ("descending", "ascending", "descending"):
        opened.click(f"{FUSED} button")
        values = fused_column(opened)
        assert values == sorted(values, reverse=order == "descending")
        assert opened.run(COLUMN.format(1))[-1].startswith("–"), "what is missing stays last"
        assert opened.run(f"document.querySelector('{FUSED}').ariaSort") == order
        assert (
            opened.run("document.querySelectorAll('table[data-sortable]:first-of-type [aria-sort$=cending]').length")
            == 1
        )


def test_the_keyboard_sorts_words_too(opened: Chromium) -> None:
    opened.run("document.querySelector('table[data-sortable] thead button').focus()")
    opened.press("Enter")
    labels = opened.run(COLUMN.format(0))
    assert labels[1:] == sorted(labels[1:])
    opened.press("Tab")
    opened.press("Enter")
    assert opened.run(f"document.querySelector('{FUSED}').ariaSort") == "descending"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_changes_the_theme(opened: Chromium, written: Path, scheme: str) -> None:
    opened.run("localStorage.clear()")
    opened.resize(1200, scheme)
    opened.open(written.as_uri())
    paper = "getComputedStyle(document.body).backgroundColor"
    before, other = opened.run(paper), "light" if scheme == "dark" else "dark"
    assert opened.run("document.getElementById('theme').textContent").lower() == f"{other} theme"
    opened.click("#theme")
    assert opened.run(paper) != before
    assert opened.run("document.getElementById('theme').textContent").lower() == f"{scheme} theme"
    opened.click("#theme")
    assert opened.run(paper) == before


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_the_page_never_scrolls_sideways(opened: Chromium, width: int) -> None:
    opened.resize(width)
    opened.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert opened.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_captions_are_neither_cut_nor_scrolled_away(opened: Chromium, width: int) -> None:
    opened.resize(width)
    opened.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    outside = """[...document.querySelectorAll('.scroll')].filter(box => {
        box.scrollLeft = SCROLLED;
        const inner = box.querySelector('caption span').getBoundingClientRect(), outer = box.getBoundingClientRect();
        return inner.left < outer.left - 1 || inner.right > outer.right + 1;
    }).map(box => box.ariaLabel)"""
    for scrolled in ("0", "box.scrollWidth"):
        assert opened.run(outside.replace("SCROLLED", scrolled)) == []


def test_figures_have_names_descriptions_and_axes(opened: Chromium) -> None:
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    charts = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img") and not node["ignored"]]
    assert len(charts) > 10
    assert all(node["name"]["value"] and node["description"]["value"] for node in charts)
    axes = opened.run("[...document.querySelectorAll('svg[role=img]')].map(e => e.querySelectorAll('.axis').length)")
    assert min(axes) >= 1


def test_texts_stay_inside_their_charts(opened: Chromium) -> None:
    outside = """[...document.querySelectorAll('svg[role=img] text')].filter(text => {
        const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
        return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
    }).map(text => text.textContent)"""
    assert opened.run(outside) == []


def test_print_unfolds_everything(opened: Chromium) -> None:
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run("document.querySelectorAll('details:not([open])').length") == 0
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.querySelectorAll('details[open]').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Chromium, scheme: str) -> None:
    opened.run("localStorage.clear(); delete document.documentElement.dataset.theme")
    opened.resize(1200, scheme)
    names = ["--paper", "--ink", "--quiet", "--link", *(f"--c{at}" for at in range(8))]
    colours = [opened.run(f"getComputedStyle(document.documentElement).getPropertyValue('{name}')") for name in names]
    paper, *texts = (luminance(colour) for colour in colours)
    ratios = [(max(paper, each) + 0.05) / (min(paper, each) + 0.05) for each in texts]
    assert min(ratios[:3]) >= 4.5, "text"
    assert min(ratios[3:]) >= 3.0, "lines"


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb, as WCAG defines it."""
    digits = colour.strip().lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
