"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Data = Annotated[str, typer.Option("--data", help="A name (`equipoise datasets`), a prepared folder, or a file.")]
Split = Annotated[str | None, typer.Option("--split", help="The protocol that cuts prepared data.")]
PresetName = Annotated[
    str, typer.Option("--preset", help="Published settings (`equipoise presets`); auto: those of the data set.")
]
Folds = Annotated[bool, typer.Option("--folds", help="Every group-wise fold instead of the one fixed cut.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs side by side; by default one per core or GPU.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
