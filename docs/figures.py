"""Draws the figures of the documentation, each for light and for dark pages: python docs/figures.py."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt

ASSETS = Path(__file__).parent / "assets"
EXAMPLES = Path(__file__).parent.parent / "examples"
LIGHT = {"ink": "#1f2328", "faint": "#59636e", "line": "#8c959f", "card": "#f6f8fa", "audio": "#0b5cad",
         "video": "#b35900", "third": "#1a7f37", "fused": "#6639ba", "fill": 0.10}  # fmt: skip
DARK = {"ink": "#f0f6fc", "faint": "#9198a1", "line": "#6e7681", "card": "#151b23", "audio": "#79b8ff",
        "video": "#ffab5e", "third": "#56d364", "fused": "#c3a5ff", "fill": 0.18}  # fmt: skip


@final
class Drawing:
    """A hand-placed SVG in one set of colours."""

    def __init__(self, colours: dict[str, Any], width: int, height: int) -> None:
        self.colours, self.size = colours, (width, height)
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, text: str, colour: str, *, dashed: bool = False) -> None:
        """A rounded box with a title."""
        c = self.colours[colour]
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{c}" fill-opacity="{self.colours["fill"]}" '
            f'stroke="{c}" stroke-width="1.8"{dash}/>'
        )
        self.text(x + w / 2, y + h / 2 + 5, text, colour, weight=600)

    def text(self, x: float, y: float, text: str, colour: str = "ink", *, size: int = 15, weight: int = 400,
             anchor: str = "middle") -> None:  # fmt: skip
        """Words at a point."""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
            f'fill="{self.colours[colour]}">{text}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = "line") -> None:
        """A line with a head."""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{self.colours[colour]}" stroke-width="1.8" '
            f'marker-end="url(#{colour})"/>'
        )

    def card(self, x: float, y: float, w: float, h: float) -> None:
        """A quiet background."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="10" fill="{self.colours["card"]}" '
            f'stroke="{self.colours["line"]}" stroke-width="1"/>'
        )

    def save(self, path: Path, title: str) -> None:
        """Write the file."""
        width, height = self.size
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" fill="{self.colours[name]}"/></marker>'
            for name in ("line", "audio", "video", "fused")
        )
        body = "\n".join(self.parts)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
            f"<title>{title}</title>\n<defs>{heads}</defs>\n{body}\n</svg>\n",
            encoding="utf-8",
        )


def idea(name: str, colours: dict[str, Any]) -> None:
    """Two encoders, three heads, three losses, and the table that decides who learns from what."""
    d = Drawing(colours, 980, 388)
    for y, modality in ((84, "audio"), (264, "video")):
        d.text(8, y + 5, modality, modality, weight=600, anchor="start")
        d.arrow(58, y, 86, y, modality)
        d.box(90, y - 32, 124, 64, "encoder", modality)
        outward = -34 if modality == "audio" else 34
        d.arrow(214, y + outward / 2, 268, y + outward, modality)
        d.arrow(214, y - outward / 2, 268, 174 + outward / 4, modality)
        d.box(272, y + outward - 24, 120, 48, "own head", modality, dashed=True)
        d.arrow(392, y + outward, 432, y + outward, modality)
        d.text(462, y + outward + 6, f'f<tspan font-size="11" dy="4">{modality}</tspan>', modality, size=17, weight=600)
        d.arrow(494, y + outward, 556, 174 + outward, modality)
    d.box(272, 150, 120, 48, "fused head", "fused")
    d.arrow(392, 174, 432, 174, "fused")
    d.text(462, 180, 'f<tspan font-size="11" dy="4">fused</tspan>', "fused", size=17, weight=600)
    d.arrow(494, 174, 556, 174, "fused")

    d.card(562, 30, 410, 288)
    d.text(767, 58, "loss = balancer(losses)", weight=600, size=16)
    d.text(767, 80, "fills one small table c[objective, block]", "faint", size=14)
    columns = {"encoder audio": 682, "encoder video": 764, "fused head": 846, "own heads": 928}
    for title, x in columns.items():
        first, _, second = title.partition(" ")
        colour = next((word for word in (second, first) if word in colours), "ink")
        d.text(x, 112, first, colour, size=14, weight=600)
        d.text(x, 130, second, colour, size=14, weight=600)
    rows = {"fused": ("1", "1", "1", "–"), "audio": ("2.7", "–", "–", "2.7"), "video": ("–", "7.3", "–", "7.3")}
    for y, (objective, cells) in zip((168, 212, 256), rows.items(), strict=True):
        d.text(582, y + 5, f'f<tspan font-size="11" dy="4">{objective}</tspan>', objective, size=17, anchor="start")
        for x, cell in zip(columns.values(), cells, strict=True):
            if cell != "–":
                share = min(float(cell) / 10, 1) * 0.5 + 0.06
                d.parts.append(
                    f'<rect x="{x - 36}" y="{y - 18}" width="72" height="36" rx="6" fill="{colours[objective]}" '
                    f'fill-opacity="{share:.2f}"/>'
                )
            d.text(x, y + 5, cell, "faint" if cell == "–" else "ink", size=15, weight=600)
    d.text(767, 302, "here MIMO: video is behind, so it learns most", "faint", size=14)
    d.text(490, 352, "loss.backward() moves every block b along  Σ c[objective, b] · ∇ f(objective):", size=15)
    d.text(
        490, 375, "a method is a rule that fills the table, and nothing else in your loop changes.", "faint", size=15
    )
    d.save(ASSETS / f"idea-{name}.svg", "Two encoders, a fused head, a head per sensor, and the balancing table")


FLOORS = (  # from the top: each package may import those on the floors below it
    {"cli": "one file a command", "integrations": "Lightning, Hugging Face, TorchJD, timm"},
    {"paper": "toy, landscape, ablation, reproduce, bench"},
    {"report": "tables, figures, the page", "deploy": "saved models, export, card, monitor"},
    {"study": "compare, job, store, registry, tuning, search; executors/ local, ray, slurm"},
    {"measure": "outputs, protocols, faults, timing"},
    {"training": "train, step, settings, optimisers, checkpoint, cuda_graph, parallel"},
    {"methods": "one file, one paper", "data": "splits, feed; own/ prepare/ sets/"},
    {"balance": "balancer, coefficients, needs, delivery", "models": "late fusion, encoders", "media": "sound, video"},
    {"util": "errors, files, processes, pool, progress"},
)
ROOM_COLOURS = {"balance": "audio", "methods": "audio", "models": "third", "media": "third", "data": "third",
                "training": "video", "measure": "video", "study": "video"}  # fmt: skip


def rooms(name: str, colours: dict[str, Any]) -> None:
    """The packages as floors of a house: imports go down, never up."""
    width, height, gap = 900, 52, 12
    d = Drawing(colours, width + 80, len(FLOORS) * (height + gap) + 40)
    for floor, packages in enumerate(FLOORS):
        y, share = 8 + floor * (height + gap), (width - gap * (len(packages) - 1)) / len(packages)
        for number, (package, holds) in enumerate(packages.items()):
            x, colour = 8 + number * (share + gap), ROOM_COLOURS.get(package, "fused")
            d.box(x, y, share, height, "", colour)
            d.text(x + share / 2, y + 22, f"{package}/", colour, weight=600)
            d.text(x + share / 2, y + 41, holds, "faint", size=13)
    bottom = 8 + len(FLOORS) * (height + gap) - gap
    d.arrow(width + 44, 8, width + 44, bottom)
    d.text(
        width / 2,
        bottom + 28,
        "imports go down, never up or sideways; testing/ imports balance and models only",
        "faint",
    )
    d.save(ASSETS / f"rooms-{name}.svg", "The packages of Equipoise in layers: imports go down")


def style(colours: dict[str, Any]) -> None:
    """Let matplotlib draw in one set of colours, and the same file from the same numbers."""
    mpl.rcParams.update({"svg.hashsalt": "equipoise", "font.size": 10, "axes.spines.top": False,
                         "axes.spines.right": False, "text.color": colours["ink"], "axes.labelcolor": colours["ink"],
                         "axes.edgecolor": colours["line"], "xtick.color": colours["faint"],
                         "ytick.color": colours["faint"], "legend.frameon": False})  # fmt: skip


def plot(name: str, colours: dict[str, Any], curves: dict[str, list[dict[str, float]]]) -> None:
    """How MIMO's weights answer to the gap, and what that does to a training run."""
    style(colours)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.3), layout="constrained")
    gap = torch.linspace(-1, 1, 401)
    for smoothing, width in ((1.0, 1.0), (0.3, 1.6), (0.1, 2.2), (0.01, 2.8)):
        left.plot(gap, torch.sigmoid(gap / smoothing), color=colours["video"], lw=width, alpha=0.35 + 0.2 * width)
    left.legend([f"μ = {smoothing}" for smoothing in (1, 0.3, 0.1, 0.01)], fontsize=9, loc="upper left")
    left.set(xlabel="how far video is behind audio:  gap video − gap audio", ylabel="video's share σ")
    left.set(xticks=(-1, -0.5, 0, 0.5, 1), ylim=(-0.04, 1.08))
    left.set_title("The smoothing decides how hard the weights tip", loc="left", fontsize=10.5)
    for title, dash in (("joint training", ":"), ("MIMO", "-")):
        for modality in ("audio", "video"):
            values = [step[modality] for step in curves[title]]
            right.plot(range(1, len(values) + 1), values, dash, color=colours[modality], lw=2,
                       label=f"{modality}, {title}")  # fmt: skip
    right.set(xlabel="epoch", ylabel="right with this sensor alone, %", ylim=(20, 100), xticks=range(0, 21, 5))
    right.set_title("plain.py and balanced.py, epoch by epoch", loc="left", fontsize=10.5)
    right.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.28))
    figure.savefig(ASSETS / f"weights-{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def training_runs() -> dict[str, list[dict[str, float]]]:
    """Run the two examples, and measure after every epoch what they print at the end."""
    curves = {}
    for title, example in (("joint training", "plain.py"), ("MIMO", "balanced.py")):
        source = (EXAMPLES / example).read_text(encoding="utf-8")
        namespace: dict[str, Any] = {}
        namespace["watched"] = _watched(namespace, curves.setdefault(title, []))
        with contextlib.redirect_stdout(io.StringIO()):
            exec(source.replace("for _ in range(20):", "for _ in watched:"), namespace)
    return curves


def _watched(example: dict[str, Any], curve: list[dict[str, float]]) -> Iterator[None]:
    for _ in range(20):
        yield
        with torch.random.fork_rng():
            torch.manual_seed(1)
            unseen, answers = example["measure"](2000)
        alone = {name: example["model"].predict({name: x}) for name, x in unseen.items()}
        curve.append({name: example["percent_right"](guess, answers) for name, guess in alone.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    ASSETS.mkdir(exist_ok=True)
    curves = training_runs()
    for name, colours in (("light", LIGHT), ("dark", DARK)):
        idea(name, colours)
        rooms(name, colours)
        plot(name, colours, curves)
