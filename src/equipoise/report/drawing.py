"""The scaffold of figures: colours, letters, and saving as SVG and PNG with a caption."""

from __future__ import annotations

import textwrap
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.util.extras import needs
from equipoise.util.files import inside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, LINE, JOINT = "#1f2328", "#59636e", "#8c959f", "#6639ba"
MODALITIES = ("#0b5cad", "#b35900", "#1a7f37", "#a40e26", "#57606a", "#8250df")
CAPTION: Any = {"fontsize": 8, "color": FAINT}


def modality_colours(names: Iterable[str]) -> dict[str, str]:
    """Give each modality a colour; the colours repeat where there are many."""
    return dict(zip(names, cycle(MODALITIES), strict=False))


@contextmanager
def style() -> Generator[None]:
    """Set the look of a figure while it is drawn; matplotlib's settings are as before afterwards."""
    with needs("a figure", "plot"):
        import matplotlib as mpl
    look: dict[Any, Any] = {
        "svg.hashsalt": "equipoise",  # the same numbers give the same file
        "font.size": 9.5,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": LINE,
        "axes.labelcolor": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "text.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.8,
        "pdf.fonttype": 42,  # letters that journals accept
    }
    with mpl.rc_context(look):
        yield


def check_ready() -> None:
    """Say what is missing before anything is trained or measured, not when it is drawn."""
    with style():
        pass


def canvas(width: float, height: float) -> Figure:
    """Make an empty figure that needs no display and no state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, folder: Path, name: str, caption: str) -> list[Path]:
    """Write NAME.svg and NAME.png with the caption under the picture."""
    width, height = figure.get_size_inches()
    text = _filled(figure, caption, width - 0.2)
    room = 0.155 * (text.count("\n") + 1) + 0.12
    figure.set_size_inches(width, height + room)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, room / (height + room), 1, height / (height + room)))  # ty: ignore[unknown-argument]
    figure.text(0.1 / width, 0.06 / (height + room), text, va="bottom", ha="left", linespacing=1.3, **CAPTION)
    _settle(figure)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [inside(folder, f"{name}.{ending}") for ending in ("svg", "png")]
    # Without the date, a figure drawn again is the same file.
    figure.savefig(paths[0], metadata={"Date": None, "Title": name, "Description": caption})
    figure.savefig(paths[1], dpi=160, metadata={"Description": caption})
    return paths


def _filled(figure: Figure, text: str, inches: float) -> str:
    """Break a caption into lines that are no wider than the figure, as its letters are drawn."""
    letters = len(text)
    while True:
        lines = textwrap.fill(text, width=letters)
        drawn = figure.text(0, 0, lines, **CAPTION)
        width = drawn.get_window_extent().width / figure.dpi
        drawn.remove()
        if width <= inches or letters == 1:
            return lines
        letters = max(1, min(letters - 1, int(letters * inches / width)))


def save_as(figure: Figure, folder: Path, name: str, ending: str) -> Path:
    """Write NAME.ENDING alone, without a caption, for a paper that has its own.

    Args:
        figure: Drawn under `style`.
        folder: Made if absent.
        name: Of the file.
        ending: pdf, svg or png.
    """
    _settle(figure)
    folder.mkdir(parents=True, exist_ok=True)
    path = inside(folder, f"{name}.{ending}")
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # drawn again, it is the same file
    figure.savefig(path, dpi=200, metadata=undated.get(ending, {}))
    return path


def _settle(figure: Figure) -> None:
    """Lay the figure out once, and round: the solver of the layout is not the same in the last bit from run to run."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 4) for edge in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
