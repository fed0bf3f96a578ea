"""Figures of a study: they fit the task, and show the numbers that scikit-learn computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics

from equipoise.measure.predictions import as_npz
from equipoise.report import Results, read, write_figures
from equipoise.report import charts as drawn
from equipoise.report.drawing import canvas, save, style
from equipoise.util.errors import BadInput
from report.example import make_row

SAMPLES = 200
random = np.random.default_rng(0)


def softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores)
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def answers(task: str, size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels and answers of a task."""
    if task == "classes":
        label = random.integers(0, size, SAMPLES)
        return label, softmax(2 * np.eye(size)[label] + noise * random.normal(size=(SAMPLES, size)))
    if task == "labels":
        label = (random.random((SAMPLES, size)) < 0.4).astype(np.float32)
        return label, (1 / (1 + np.exp(-3 * (label - 0.5) - noise * random.normal(size=label.shape)))).astype(
            np.float32
        )
    label = random.normal(100, 20, size=(SAMPLES, size)).astype(np.float32)
    return label, (label + 5 * noise * random.normal(size=label.shape)).astype(np.float32)


def study(folder: Path, task: str = "classes", size: int = 3, data: str = "watch", methods: int = 3) -> Path:
    """A folder of rows with their answers."""
    folder.mkdir(parents=True, exist_ok=True)
    metric = {"classes": "accuracy", "labels": "macro_f1", "regression": "mae"}[task]
    with (folder / "results.jsonl").open("a") as out:
        for at, label in enumerate(
            ["msl", "ew", "mimo", "mmpareto", "ogmge", "ensemble", "a very long name of a method"][:methods]
        ):
            for seed in range(2):
                row: dict[str, Any] = {**make_row(label, seed, data=data), "task": task, "metric": metric}
                row["test"] |= {"baseline": 0.3}
                out.write(json.dumps(row) + "\n")
                truth, answer = answers(task, size, 1 + at)
                run = folder / "runs" / row["config"].removeprefix("sha256:")[:12]
                run.mkdir(parents=True)
                arrays = {"row": np.arange(SAMPLES), "label": truth, "fused": answer, "task": np.array(task)}
                names = np.array([f"name {number}" for number in range(size)])
                (run / "predictions.npz").write_bytes(as_npz({**arrays, "names": names}))
    return folder


def figure(results: Results, kind: str) -> Any:
    ((name, groups),) = results.groups.items()
    with style():
        return drawn.FIGURES[kind][0](results, groups, name, "fused")


def pooled(results: Results, label: str) -> tuple[np.ndarray, np.ndarray]:
    group = next(group for group in results.groups["watch"] if group.label == label)
    files = [np.load(results.run_folder(row) / "predictions.npz") for row in group.rows]
    return np.concatenate([one["label"] for one in files]), np.concatenate([one["fused"] for one in files])


FITTING = {
    "classes": ("pdf", ["confusion", "roc", "calibration", "bars"]),
    "labels": ("svg", ["roc", "calibration", "bars"]),
    "regression": ("png", ["residuals", "bars"]),
}


@pytest.mark.parametrize("task", FITTING)
def test_every_figure_that_fits_is_written(task: str, tmp_path: Path) -> None:
    to, kinds = FITTING[task]
    results = read(study(tmp_path, task, methods=1))
    for kind in drawn.FIGURES:
        if kind in kinds:
            (path,) = write_figures(kind, results, to)
            assert path == tmp_path / "figures" / f"{kind}{'' if kind == 'bars' else '-fused'}.{to}"
            assert path.read_bytes()[:4] in (b"%PDF", b"<?xm", b"\x89PNG")
        else:
            with pytest.raises(BadInput, match=f"{kind}: does not fit {task}; expected {', '.join(kinds)} for"):
                write_figures(kind, results, to)
    first = path.read_bytes()
    write_figures(kinds[-1], results, to)
    assert path.read_bytes() == first  # drawn again, it is the same file


def test_a_confusion_matrix_is_that_of_scikit_learn(tmp_path: Path) -> None:
    results = read(study(tmp_path))
    panels = figure(results, "confusion").axes
    assert len(panels) == 3  # one for each method
    for axes in panels:
        label, answer = pooled(results, axes.get_title(loc="left"))
        counts = sklearn.metrics.confusion_matrix(label, answer.argmax(axis=1))
        expected = 100 * counts / counts.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(axes.images[0].get_array(), expected)
        assert {text.get_text() for text in axes.texts} == {
            f"{share:.0f}\nn={count}"
            for share, count in zip(expected.flatten(), counts.flatten(), strict=True)
            if share >= 0.5
        }


@pytest.mark.parametrize(("task", "size"), [("classes", 2), ("classes", 3), ("labels", 3), ("classes", 12)])
def test_areas_are_those_of_scikit_learn(task: str, size: int, tmp_path: Path) -> None:
    results = read(study(tmp_path, task, size))
    panels = figure(results, "roc").axes
    assert len(panels) == (1 if size == 2 else 3)
    for axes in panels:
        legend = axes.get_legend()
        if legend is None:
            assert f"{size} curves" in axes.texts[0].get_text()
            continue
        for text in legend.get_texts():
            name, area = text.get_text().rsplit(" ", 1)
            label, answer = pooled(results, name if size == 2 else axes.get_title(loc="left"))
            at = 1 if size == 2 else int(name.split()[-1])
            truth = label == at if task == "classes" else label[:, at]
            assert float(area) == pytest.approx(sklearn.metrics.roc_auc_score(truth, answer[:, at]), abs=6e-4)


def test_residuals_are_differences(tmp_path: Path) -> None:
    results = read(study(tmp_path, "regression", 1))
    panels = figure(results, "residuals").axes
    assert len(panels) == 3
    for axes in panels:
        method, about = axes.get_title(loc="left").split(":")
        label, answer = pooled(results, method)
        points = np.asarray(axes.collections[0].get_offsets())
        np.testing.assert_allclose(np.sort(points[:, 1]), np.sort((answer - label)[:, 0]), rtol=1e-5)
        assert about.endswith(f"mae {np.abs(answer - label).mean():.3g}")


def test_the_best_of_many_methods_and_each_of_several_data_sets(tmp_path: Path) -> None:
    study(study(tmp_path, methods=7), "regression", 2, data="drive.npz")
    results = read(tmp_path)
    names = [path.name for path in write_figures("bars", results, "svg")]
    assert names == ["bars-drive.svg", "bars-watch.svg"]
    assert [path.name for path in write_figures("confusion", results, "svg")] == ["confusion-fused-watch.svg"]
    assert [path.name for path in write_figures("bars", results, "svg", data="watch")] == ["bars-watch.svg"]
    with style():
        figure = drawn.FIGURES["confusion"][0](results, results.groups["watch"], "watch", "fused")
    assert len(figure.axes) == drawn.MOST_PANELS


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    results = read(study(tmp_path))
    for name, arguments in {"figure": ("pie",), "format": ("roc", "jpg"), "decision": ("roc", "pdf", "vote")}.items():
        with pytest.raises(BadInput, match=f"unknown {name}"):
            write_figures(arguments[0], results, *arguments[1:])
    with pytest.raises(BadInput, match="unknown data set"):
        write_figures("roc", results, data="wach")
    with pytest.raises(BadInput, match="expected answers of committee in its runs, found none"):
        write_figures("roc", results, decision="committee")


def test_the_legend_of_calibration_lies_beside_the_curves(tmp_path: Path) -> None:
    (axes,) = (drawing := figure(read(study(tmp_path)), "calibration")).axes
    drawing.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


@pytest.mark.parametrize("width", [3.0, 6.4, 13.0])
@pytest.mark.parametrize("words", ["mmm WWW epochs=", "ill. 'i' ", "λ = 10 [−1.8, +65.2] ± "])
def test_a_caption_stays_inside_its_figure(width: float, words: str, tmp_path: Path) -> None:
    caption = (words * 40).strip()
    with style():
        picture = canvas(width, 2.0)
        picture.subplots()
        save(picture, tmp_path, "one", caption)
    picture.canvas.draw()
    (text,) = picture.texts
    assert " ".join(text.get_text().split()) == " ".join(caption.split())
    edges = text.get_window_extent()
    assert edges.x0 >= 0
    assert 0.75 * picture.bbox.x1 < edges.x1 <= picture.bbox.x1, "and uses its width"
