"""From arrays to a table: two sensors of twelve people in one file, and a comparison of three methods on it."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from equipoise import report
from equipoise.data.check import check_data
from equipoise.data.source import data_set
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study

torch.set_num_threads(1)
random = np.random.default_rng(0)

# Generated data: what twelve people do shows in the pitch of a motion, and faintly in eight readings of a pressure mat.
PEOPLE, CLASSES, EACH = 12, 3, 10
label = np.tile(np.repeat(np.arange(CLASSES), EACH), PEOPLE)
person = np.repeat(np.arange(PEOPLE), CLASSES * EACH)
pitch = 0.3 + 0.1 * label + 0.02 * random.normal(size=PEOPLE)[person]
phase = 6 * random.random((len(label), 3, 1))
motion = np.sin(np.arange(60) * pitch[:, None, None] + phase) + random.normal(size=(len(label), 3, 60))
mat = 0.6 * random.normal(size=(CLASSES, 8))[label] + random.normal(size=(len(label), 8))

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "my.npz"
    names = np.array(["sit", "walk", "run"])
    np.savez(path, motion=motion, mat=mat, label=names[label], group=person)

    # What follows is what these two lines do on a command line:
    #   equipoise check   --data my.npz
    #   equipoise compare --data my.npz --methods msl,ew,mimo --seeds 2 --quick --out runs/mine epochs=10
    found = check_data(str(path))
    print(f"{found.samples}, wrong: {found.errors or 'nothing'}")
    methods = entries(["msl", "ew", "mimo"], ["epochs=10"])
    jobs, splits = plan(methods, data_set(str(path)), seeds=[0, 1], folds=[None], measure="quick")
    run_study(jobs, splits, Store(Path(folder) / "runs"))
    for table in report.tables(report.read(Path(folder) / "runs")):
        report.print_table(table)
