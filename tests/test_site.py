"""The site as it is built: links lead somewhere, the tutorial shows what its code gives, and no example is left out."""

import base64
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, final
from urllib.parse import unquote, urlsplit

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from documentation import ROOT, assert_alike, load

TUTORIAL = load("tutorial")
GALLERY = load("gallery")
# Whom the documentation may point to. What is installed is installed by name: nobody needs the address of a registry.
OUTSIDE = {
    "arxiv.org",
    "github.com",
    "hydra.cc",
    "keepachangelog.com",
    "optuna.org",
    "pre-commit.com",
    "semver.org",
    "www.w3.org",
}


# -- the tutorial --


def stored() -> dict[str, list[dict[str, Any]]]:
    return {cell["id"]: cell["outputs"] for cell in TUTORIAL.read()["cells"] if cell["cell_type"] == "code"}


def text_of(output: dict[str, Any]) -> str:
    return "".join(output.get("text") or output["data"]["text/plain"])


def pixels(output: dict[str, Any]) -> np.ndarray:
    return plt.imread(io.BytesIO(base64.b64decode(output["data"]["image/png"])))


@pytest.mark.slow
def test_the_tutorial_runs_and_shows_what_is_stored() -> None:
    kept = stored()
    assert sum("image/png" in output.get("data", {}) for outputs in kept.values() for output in outputs) >= 1
    with torch.random.fork_rng():
        for cell, outputs in TUTORIAL.run(TUTORIAL.read()):
            assert len(outputs) == len(kept[cell["id"]]), cell["id"]
            for told, found in zip(kept[cell["id"]], outputs, strict=True):
                assert_alike(text_of(told), text_of(found))
                if "image/png" in found.get("data", {}):
                    old, new = pixels(told), pixels(found)
                    assert old.shape == new.shape
                    # Rounding moves a curve by less than a pixel; other curves change three pixels in a thousand.
                    assert (np.abs(old - new).max(axis=2) > 0.3).mean() < 0.001, "run python docs/tutorial.py"


def test_the_tutorial_is_a_notebook_that_was_run_from_top_to_bottom() -> None:
    notebook = TUTORIAL.read()
    assert notebook["nbformat"] == 4
    assert 15 <= len(notebook["cells"]) <= 25
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_a_cell_shows_what_it_prints_then_its_last_value_as_jupyter_does() -> None:
    cells = [
        {"cell_type": "code", "id": "one", "source": ["a = 1\n", "print(a)\n", "a + 1"]},
        {"cell_type": "markdown", "id": "two", "source": ["words"]},
        {"cell_type": "code", "id": "three", "source": ["a + 1;"]},
    ]
    shown = {cell["id"]: [text_of(output) for output in outputs] for cell, outputs in TUTORIAL.run({"cells": cells})}
    assert shown == {"one": ["1\n", "2"], "three": []}


def test_the_page_holds_every_cell_and_every_output() -> None:
    page = TUTORIAL.page()
    for cell in TUTORIAL.read()["cells"]:
        assert TUTORIAL.source(cell) in page
    for outputs in stored().values():
        assert all(text_of(output).rstrip("\n") in page for output in outputs if "data" not in output)
    assert set(re.findall(r"!\[.+?\]\((.*?)\)", page)) == set(TUTORIAL.pictures())


@pytest.mark.parametrize(
    ("told", "found", "alike"),
    [
        ("fused  91.0 %", "fused  90.2 %", True),
        ("fused  9.0 %", "fused  10.2 %", True),
        ("fused  91.0 %", "fused  94.2 %", False),
        ("fused  91.0 %", "audio  91.0 %", False),
        ("(1800, 8)", "(1801, 8)", False),
        ("2 seeds", "2 seeds, 1.0", False),
    ],
)
def test_the_comparison_can_fail(told: str, found: str, alike: bool) -> None:
    if alike:
        assert_alike(told, found)
    else:
        with pytest.raises(AssertionError):
            assert_alike(told, found)


# -- the gallery --


def cards() -> dict[str, str]:
    """Each card of the gallery by the name of its example."""
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    card = re.compile(r"^-   \*\*.+?\*\*\{ #(\w+) \}(.*?)(?=^-   |^</div>)", re.MULTILINE | re.DOTALL)
    return dict(card.findall(text))


def test_the_gallery_has_every_example_with_its_command_and_what_it_prints() -> None:
    assert set(cards()) == set(GALLERY.names()) - {"plain"}, "plain and balanced share a card"
    for name, card in cards().items():
        assert re.search(rf"^    (python|equipoise compare --config) examples/{name}\.(py|yaml)", card, re.M), name
        assert f'--8<-- "docs/printed/{name}.txt"' in card
        assert re.search(rf'--8<-- "examples/{name}\.(py|yaml)"', card), name
    assert {path.stem for path in GALLERY.PRINTED.glob("*.txt")} == set(GALLERY.names())


def test_the_gallery_shows_every_picture_that_is_drawn_in_both_schemes() -> None:
    for name, card in cards().items():
        shown = set(re.findall(r"assets/gallery-(\w+)-(light|dark)\.svg#only-(light|dark)", card))
        assert shown == ({(name, each, each) for each in ("light", "dark")} if name in GALLERY.PICTURES else set())


@pytest.mark.skipif(
    f"matplotlib=={matplotlib.__version__}\n" not in (ROOT / "constraints.txt").read_text(encoding="utf-8"),
    reason="another version of matplotlib draws the same with other paths",
)
@pytest.mark.parametrize("picture", ["balanced", "missing_sensor", "shipped"])
def test_pictures_show_what_the_examples_print(picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The others show what balancers did on the way; they are drawn with the examples, by python docs/gallery.py.
    monkeypatch.setattr(GALLERY, "ASSETS", tmp_path)
    needs = GALLERY.PICTURES[picture][1]
    printed = {name: (GALLERY.PRINTED / f"{name}.txt").read_text(encoding="utf-8") for name in needs}
    with matplotlib.rc_context():
        GALLERY.draw(picture, {name: GALLERY.Watched(text, []) for name, text in printed.items()})
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 2
    for file in drawn:
        assert file.read_bytes() == (ROOT / "docs" / "assets" / file.name).read_bytes(), file.name


def test_the_table_of_a_comparison_is_read_off_right() -> None:
    printed = "\n".join(
        [
            "my.npz: accuracy on the test set",
            "          committee               vs msl       fused        easy",
            "method   shipped, %               points           %           %",
            "────────────────────────────────────────────────────────────────",
            "ew       92.5 ± 3.5  +2.5 [-17.8, +24.5]  91.7 ± 2.4  68.3 ± 7.1",
            "msl      90.0 ± 2.4                    –  88.3 ± 4.7  52.5 ± 0.6",
            "mimo     82.5 ± 1.2  -7.5 [-12.0, -3.0]   80.8 ± 8.2  56.7 ± 4.7",
            "",
            "              hard  alone by   disparity         step",
            "method           %                points           ms",
            "─────────────────────────────────────────────────────",
            "ew      84.2 ± 1.2  head      15.8 ± 8.2  2.35 ± 7.69",
            "msl     83.3 ± 4.7  detached  30.8 ± 5.9  3.22 ± 8.10",
            "mimo    82.5 ± 3.5  head      25.8 ± 1.2  2.12 ± 0.26",
            "",
            "Headline: committee, 1.0 ± 2.0",
        ]
    )
    titles, rows = GALLERY._columns(printed)
    assert titles == ["fused", "easy", "hard"]
    assert rows == {
        "msl": [(88.3, 4.7), (52.5, 0.6), (83.3, 4.7)],
        "ew": [(91.7, 2.4), (68.3, 7.1), (84.2, 1.2)],
        "mimo": [(80.8, 8.2), (56.7, 4.7), (82.5, 3.5)],
    }


# -- links --


@final
class Page(HTMLParser):
    """The anchors of a page, and where it points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.sections = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sections += tag == "h2"
        for name, value in attrs:  # whatever it is, what it points to has to be there
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.targets.add(value)


def pages_of(folder: Path) -> dict[Path, Page]:
    """Every page of a site but the one for what is not there, whose links start at an unknown root."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html") if path.name != "404.html"}


def dead_links(site: dict[Path, Page]) -> dict[str, str]:
    """What leads to no file or no anchor, and on which page it stands."""
    dead = {}
    for path, page in site.items():
        for target in page.targets:
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = file.is_file() if file not in site else not parts.fragment or parts.fragment in site[file].anchors
            if not parts.scheme and not there:
                dead[target] = path.name
    return dead


def test_the_check_of_links_can_fail(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><img src="here.svg#only-dark"><a href="deep/b.html#there">b</a><a href="#top">up</a>'
        '<a href="https://optuna.org/x#y">x</a><a href="b.html">no</a><img src="gone.svg">'
        '<a href="deep/b.html#no">no</a>'
    )
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.html").write_text('<h2 id="there">B</h2><a href="../a.html">a</a><a href="#top">no</a>')
    (tmp_path / "here.svg").touch()
    found = dead_links(pages_of(tmp_path))
    assert found == {"b.html": "a.html", "gone.svg": "a.html", "deep/b.html#no": "a.html", "#top": "b.html"}


@pytest.mark.slow
def test_every_link_of_the_built_site_leads_somewhere(tmp_path: Path) -> None:
    """Pages, anchors, pictures, scripts, the notebook. Links to elsewhere are read, not followed."""
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    site = pages_of(tmp_path)
    assert dead_links(site) == {}
    outside = {urlsplit(target) for page in site.values() for target in page.targets if urlsplit(target).scheme}
    assert {address.scheme for address in outside} == {"https"}
    assert {address.hostname for address in outside} <= OUTSIDE
    names = {path.name for path in site}
    assert {"index.html", "tutorial.html", "gallery.html", "mimo.html", "api.html", "faq.html"} <= names
    assert len(names) > 40, "every page was looked at"
    for page in sorted((ROOT / "docs").glob("*.md")):
        outside_of_code = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        written = len(re.findall(r"^## ", outside_of_code, re.MULTILINE))
        assert site[tmp_path / f"{page.stem}.html"].sections >= written, f"{page.name}: a block has swallowed a section"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_elsewhere_are_well_formed(name: str) -> None:
    found = re.findall(r"https?://[^\s)>\"'`]+", (ROOT / name).read_text(encoding="utf-8"))
    for address in found:
        parts = urlsplit(address.rstrip(".,"))
        assert parts.scheme == "https"
        assert parts.hostname in OUTSIDE, address
