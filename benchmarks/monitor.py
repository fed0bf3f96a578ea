"""What the sensor monitor finds on the smartwatch, over ten folds by person: the table of docs/deployment.md.

    python benchmarks/monitor.py --method mimo --epochs 20

Ten trainings, about half a minute each on one core.
"""

import argparse
from collections import defaultdict

import torch

from equipoise.data.bundled import watch
from equipoise.deploy import evaluate_monitor, fit_monitor
from equipoise.measure import training_statistics
from equipoise.study.registry import entries
from equipoise.training.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="mimo")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folds", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    (entry,) = entries([asked.method], [f"epochs={asked.epochs}", "encoder=cnn1d"])
    trials, by_fault = [], defaultdict(list)
    for fold in range(asked.folds):
        splits = watch(fold)
        model = train(splits, entry.balancer(), entry.settings, seed=0).model
        monitor = fit_monitor(model, splits.validation)
        trial = evaluate_monitor(monitor, model, splits.test, training_statistics(splits.train))
        trials.append(trial)
        for each in trial.faults:
            by_fault[each.fault, each.sensor].append(each)
        print(f"fold {fold}: alarms in {trial.stretches:.2%} of stretches, {trial.dead():.1%} of total failures found")
    print(f"\nfalse alarms: {mean(each.stretches for each in trials):.2%} of stretches of ten windows, ", end="")
    print(f"{mean(each.windows for each in trials):.2%} of windows; total failures: ", end="")
    print(f"{mean(each.dead() for each in trials):.1%} found\n")
    print(f"{'fault':<22}{'sensor':<16}{'found':>8}{'delay':>8}{'named':>8}{'trials':>8}")
    for (fault, sensor), some in by_fault.items():
        tried = sum(each.trials for each in some)
        hits = sum(each.trials * each.found for each in some)
        delay = sum(each.trials * each.found * (each.delay or 0) for each in some) / max(hits, 1)
        named = sum(each.trials * each.found * (each.named or 0) for each in some) / max(hits, 1)
        print(f"{fault:<22}{sensor:<16}{hits / tried:>8.1%}{delay:>8.1f}{named:>8.1%}{tried:>8}")


def mean(values) -> float:  # noqa: ANN001
    values = list(values)
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
