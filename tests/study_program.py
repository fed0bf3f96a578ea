"""A small study, run as a program of its own so that it can be killed: python study_program.py FOLDER."""

import sys
from pathlib import Path

import torch

from equipoise.data.source import all_data
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import OnEvent, plan, run_study

torch.set_num_threads(1)
METHODS = ["msl", "mimo", "ogmge", "ensemble"]
WORDS = ["epochs=16", "features=8", "optimizer=adamw", "dropout=0.2", "schedule=cosine"]


def main(folder: Path, on_event: OnEvent | None = None) -> None:
    """Every run of the study, with a checkpoint after each epoch."""
    jobs, splits = plan(entries(METHODS, WORDS), all_data()["generated"], [0, 1], [None], measure="quick")
    run_study(jobs, splits, Store(folder), workers=2, checkpoint_seconds=0, on_event=on_event)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
