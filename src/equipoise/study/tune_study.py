"""The database of a search: made whole or not at all, and opened by the search that made it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.util.errors import BadInput

if TYPE_CHECKING:
    import optuna

    from equipoise.study.job import Job
    from equipoise.study.tune import Search

NAME = "tune"
STARTS = 5  # trials that come to their end before any is pruned
GRACE = 3  # the part of its epochs that every trial may train: curves cross early


def open_study(file: Path, search: Search, job: Job) -> optuna.Study:
    """The search of a folder, or a new one; another one is refused."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    asked = json.loads(json.dumps({**job.facts(), "space": {key: str(each) for key, each in search.space.items()}}))
    if not file.exists():
        _create(file, asked)
    epochs = job.entry.settings.epochs
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTS, n_warmup_steps=max(2, epochs // GRACE))
    sampler = optuna.samplers.RandomSampler()  # values are chosen elsewhere: it draws nothing at the start of a trial
    try:
        study = optuna.load_study(study_name=NAME, storage=_url(file), sampler=sampler, pruner=pruner)
        trials = study.get_trials(deepcopy=False)
    except Exception as found:
        if type(found).__name__ not in {"DatabaseError", "StorageInternalError", "KeyError"}:
            raise
        raise BadInput(f"{file}: expected the trials of a search, found: {found}; choose another --out") from None
    before = study.user_attrs.get("asked", {})
    if before != asked:
        old, new = _flat(before), _flat(asked)
        other = [f"{key} {value}" for key, value in old.items() if value != new.get(key)]
        other += [f"{key} not among it" for key in new if key not in old]
        raise BadInput(f"{file.parent} holds another search ({', '.join(other)}); choose another folder with --out")
    if foreign := [each.number for each in trials if not {"values", "config"} <= set(each.user_attrs)]:
        numbers = ", ".join(map(str, foreign))
        raise BadInput(f"{file}: expected values of each trial, found none in trial {numbers}; choose another --out")
    return study


def _create(file: Path, asked: dict[str, Any]) -> None:
    """Write down an empty search under another name, then rename it: a kill leaves a whole one or none."""
    import optuna

    unfinished = file.with_suffix(".tmp")
    for rest in (unfinished, unfinished.with_name(f"{unfinished.name}-journal")):
        rest.unlink(missing_ok=True)
    storage = optuna.storages.RDBStorage(_url(unfinished))
    study = optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
    study.set_user_attr("asked", asked)
    storage.remove_session()
    storage.engine.dispose()
    unfinished.replace(file)


def _url(file: Path) -> str:
    return f"sqlite:///{file.resolve()}"


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Settings and limits each for itself, so that only those that differ are named."""
    inner = {f"{key} {name}": each for key in ("run", "space") for name, each in facts.get(key, {}).items()}
    return {**{key: value for key, value in facts.items() if key not in ("run", "space")}, **inner}
