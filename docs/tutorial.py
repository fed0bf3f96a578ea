"""The tutorial, a notebook and a page in one: python docs/tutorial.py runs tutorial.ipynb and keeps what it shows."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent / "tutorial.ipynb"
DOTS = 110  # per inch: sharp enough on a page, and small in the file

Cell = dict[str, Any]
Output = dict[str, Any]


def read() -> dict[str, Any]:
    """The notebook as it is stored."""
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def source(cell: Cell) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


# -- running it --


def run(notebook: dict[str, Any]) -> Iterator[tuple[Cell, list[Output]]]:
    """Each code cell with what it shows, run from top to bottom in one namespace as Jupyter would."""
    import matplotlib as mpl

    mpl.use("Agg")
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield cell, [*_said(source(cell), f"cell {cell['id']}", namespace), *_drawn()]


def _said(code: str, name: str, namespace: dict[str, Any]) -> Iterator[Output]:
    """What a cell prints, then the value of its last line."""
    body = ast.parse(code, name).body
    last = body.pop() if isinstance(body[-1], ast.Expr) and not code.endswith(";") else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        yield {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}


def _drawn() -> Iterator[Output]:
    """The figures that a cell leaves open."""
    from matplotlib import pyplot as plt

    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, dpi=DOTS, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}
    plt.close("all")


def store() -> None:
    """Run the notebook and write it back, as Jupyter writes its files."""
    notebook = read()
    for number, (cell, outputs) in enumerate(run(notebook), start=1):
        cell["execution_count"] = number
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
        cell["outputs"] = outputs
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# -- the page --


def page() -> str:
    """The notebook as Markdown: code in blocks, and below each what it showed when it was run last."""
    blocks = []
    for cell in read()["cells"]:
        blocks.append(source(cell) if cell["cell_type"] == "markdown" else f"```python\n{source(cell)}\n```")
        blocks += [_shown(cell, output) for output in cell.get("outputs", ())]
    title, *rest = blocks
    wide = "---\nhide: [toc]\n---"  # lines of code are long
    note = "*This page is a notebook: [tutorial.ipynb](tutorial.ipynb) has the same cells to run and to change.*"
    return "\n\n".join([wide, title, note, *rest])


def pictures() -> dict[str, bytes]:
    """The figures of the page, by their places."""
    return {
        _place(cell): base64.b64decode(output["data"]["image/png"])
        for cell in read()["cells"]
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    }


def _place(cell: Cell) -> str:
    return f"assets/tutorial-{cell['id']}.png"


def _shown(cell: Cell, output: Output) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![{cell['metadata']['alt']}]({_place(cell)})"
    return "```text\n" + "".join(output.get("text") or data["text/plain"]).rstrip("\n") + "\n```"


if __name__ == "__main__":
    store()
