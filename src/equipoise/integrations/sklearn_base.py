"""The part of scikit-learn's estimators that does not depend on the task: reading X, training, answering."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.data.own.arrays import read_samples
from equipoise.data.own.draw import hold_out
from equipoise.data.splits import Splits
from equipoise.deploy.deployable import COMMITTEE, FUSED, LENGTH, Deployable, InputSpec
from equipoise.deploy.recorded import read_recorded
from equipoise.measure.outputs import batches_of, decisions
from equipoise.measure.remarks import sameness, warnings_of
from equipoise.models.committee import fit_committee
from equipoise.models.fusion_model import FusionModel
from equipoise.models.task import task_of
from equipoise.study.portfolio import make_model
from equipoise.study.registry import Entry, automatic_methods, method_of
from equipoise.training.launch import device_of
from equipoise.training.recipe import RECIPE, epochs_for
from equipoise.training.settings import Settings, names
from equipoise.training.train import Record, train
from equipoise.util.errors import BadInput, demand, look_up, raise_all, unknown_name

ONLY = "x"
"""The name of the one modality that a matrix is, where `modalities` does not divide its columns."""
BATCH = 512  # samples that are answered at a time
Columns = Mapping[str, Sequence[str | int]]
Estimator = TypeVar("Estimator", bound="Multimodal")


class Multimodal(BaseEstimator, ABC):
    """The part that both estimators share."""

    model_: FusionModel
    inputs_: dict[str, InputSpec]
    curves_: list[Record]

    def __init__(
        self,
        modalities: Columns | None,
        method: str | Balancer | type[Balancer],
        method_params: Mapping[str, Any] | None,
        epochs: int | Literal["auto"],
        steps: int,
        batch: int,
        lr: float,
        encoder: str,
        metric: str,
        decision: str,
        validation_fraction: float,
        settings: Mapping[str, Any] | None,
        device: str,
        random_state: Any,
        verbose: bool,
    ) -> None:
        self.modalities = modalities
        self.method = method
        self.method_params = method_params
        self.epochs = epochs
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.encoder = encoder
        self.metric = metric
        self.decision = decision
        self.validation_fraction = validation_fraction
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.modalities is not None  # it says that a modality is missing
        return tags

    @abstractmethod
    def _target(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Give the labels of a data set, and the settings that belong to them."""

    def fit(self: Estimator, X: Any, y: Any, groups: Any = None) -> Estimator:  # noqa: N803 (scikit-learn's name)
        """Train on all samples but those that are held out for validation.

        Args:
            X: {modality: array [N, …]}; or a DataFrame or matrix [N, D], whose columns `modalities` divides.
            y: What to predict of each sample.
            groups: The person or recording of each sample: none is both trained on and held out.
        """
        rules: dict[str, Any] = {"multi_output": True, "y_numeric": not isinstance(self, ClassifierMixin)}
        if _is_mapping(X):
            arrays, y = dict(X), validate_data(self, y=y, **rules)
            self.__dict__.pop("n_features_in_", None)  # of an earlier fit to a matrix
        else:
            matrix, y = validate_data(self, X, y, **rules, **self._matrix_rules())
            arrays = self._divided(matrix)
        share = self.validation_fraction
        demand(type(self).__name__, (0 < share <= 0.5, "validation_fraction should be above 0 and at most 0.5", share))
        label, words = self._target(y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        samples = read_samples(arrays, label, group=groups, name="X", task=words["task"])
        if samples.label is not None and not samples.problems:
            numbers = None if samples.group is None else samples.group.numbers
            held = hold_out(samples.label.strata, numbers, seed, share)
            samples = replace(samples, marks=held.astype(np.int64))
        for sentence in self._train(Splits.from_samples(samples, tested=False), words, seed):
            warnings.warn(sentence, ConvergenceWarning, stacklevel=2)
        return self

    def _matrix_rules(self) -> dict[str, Any]:
        return {"ensure_all_finite": True if self.modalities is None else "allow-nan"}

    def _divided(self, matrix: np.ndarray) -> dict[str, np.ndarray]:
        """Divide the columns of a matrix into modalities."""
        if self.modalities is None:
            return {ONLY: matrix}
        if not isinstance(self.modalities, Mapping):
            found = type(self.modalities).__name__
            raise BadInput(f'modalities: expected columns by modality, {{"imu": [0, 1], "ecg": [2]}}, found {found}')
        names = list(getattr(self, "feature_names_in_", ()))
        place: dict[Any, int] = {number: number for number in range(matrix.shape[1])}
        place |= {name: number for number, name in enumerate(names)}
        raise_all(
            f"modalities[{name!r}]: expected columns of X, found {unknown_name(column, map(str, names or place))}"
            for name, columns in self.modalities.items()
            for column in columns
            if column not in place
        )
        return {name: matrix[:, [place[column] for column in columns]] for name, columns in self.modalities.items()}

    def _train(self, splits: Splits, words: Mapping[str, Any], seed: int) -> list[str]:
        """Train, and return what should be known before anybody believes the answers, a sentence each."""
        steps = math.ceil(len(splits.train) / self.batch)  # of an epoch
        own = {name: getattr(self, name) for name in ("batch", "lr", "encoder", "metric", "device")}
        epochs = epochs_for(len(splits.train), self.batch) if self.epochs == "auto" else self.epochs
        own["epochs"] = max(epochs, math.ceil(self.steps / steps))
        settings = RECIPE.changed({**own, **words, **self._more_settings({*own, *words})})
        look_up("decision", self.decision, dict.fromkeys((COMMITTEE, FUSED)))
        automatic, device = self._automatic(settings), device_of(settings)
        how: dict[str, Any] = {"seed": seed, "on_epoch": _print if self.verbose else None}
        with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):  # the caller's stays as it is
            if automatic is not None:
                made = make_model(automatic, splits, **how)
                model, trained = made.refitted or made.model, made.trained
            else:
                balancer, finish = self._balancer()
                trained = train(splits, balancer, settings, **how)
                model = trained.model if finish is None else finish(trained.model)
        batches = batches_of(splits.validation, model.committee.device, BATCH)
        fit_committee(model, batches, groups=splits.validation.group, keep=model.fitted)
        self.model_ = copy.deepcopy(model).cpu().eval()  # so that it can be read anywhere
        self.inputs_ = {name: _input_spec(splits, name) for name in splits.modalities}
        self.curves_ = trained.curves
        outputs, task = decisions(model, splits.validation, BATCH), model.known_task()
        answer = outputs.committee if self.decision == COMMITTEE else task.answer(outputs.fused)
        names = [*map(str, getattr(self, "classes_", task.names))]
        positive = None if task.positive is None else names[task.names.index(task.positive)]
        task = task_of({**task.as_dict(), "names": names, "positive": positive})
        alike = sameness(self.decision, answer, outputs.label, task, splits.validation.group)
        taken, weighted = trained.steps * len(trained.curves), settings.class_weight != "none"
        return warnings_of(alike, taken, task, weighted=weighted, trained=trained.steps > 0)

    def _more_settings(self, taken: set[str]) -> dict[str, Any]:
        """Give the settings that are no parameters of the estimator, or raise one message with all that are none."""
        more, known = self.settings or {}, sorted({*names()} - taken)
        if not isinstance(more, Mapping):
            expected = 'settings: expected a dict, such as {"fusion": "sum"}'
            raise BadInput(f"{expected}, found {type(more).__name__}")
        owner, problems = type(self).__name__, []
        for name, value in more.items():
            if name in taken and name in self.get_params():
                problems.append(f"settings: {name} is a parameter of its own; type {owner}({name}={value!r})")
            elif name in taken:
                problems.append(f"settings: {name} is not to be set; {owner} decides it")
            elif name not in known:
                problems.append(f"settings: {unknown_name(name, known)}")
        raise_all(problems)
        return dict(more)

    def _automatic(self, settings: Settings) -> Entry | None:
        """Return what makes the model where the method is no single training; None where it is one."""
        known = automatic_methods()
        if not isinstance(self.method, str) or self.method not in known:
            return None
        method, params = known[self.method], dict(self.method_params or {})
        unknown = [name for name in params if name not in method.parameters]
        raise_all(f"method_params: {unknown_name(name, method.parameters)}" for name in unknown)
        return Entry(method.name, method, {**method.parameters, **params}, settings)

    def _balancer(self) -> tuple[Balancer, Any]:
        """Make the balancer, and find what is applied to the model after training."""
        params = dict(self.method_params or {})
        if isinstance(self.method, Balancer):
            if params:
                raise BadInput("method_params: expected none beside a method that is made; give its name or class")
            return copy.deepcopy(self.method), None
        if inspect.isclass(self.method):
            return self.method(**params), None
        method = method_of(self.method)
        if not method.fused and method.finish is None:
            raise BadInput(f"method: {method.name} trains no fused head; choose ensemble, whose sensors vote")
        return method.make(**params), method.finish

    def _answer(self, X: Any) -> np.ndarray:  # noqa: N803 (scikit-learn's name)
        """Give probabilities or numbers, [N, size]."""
        check_is_fitted(self)
        if _is_mapping(X):
            arrays = dict(X)
        elif not hasattr(self, "n_features_in_"):
            raise BadInput(f"X: expected a dict of {', '.join(self.inputs_)}, as in fit, found {type(X).__name__}")
        else:
            arrays = self._divided(validate_data(self, X, reset=False, **self._matrix_rules()))
        device = device_of(Settings(device=self.device))
        # In double precision an answer does not depend on its batch, as scikit-learn has it; for series it would take
        # too long.
        wide = device == "cpu" and all(
            one.dtype.is_floating_point and len(one.shape) == 1 for one in self.inputs_.values()
        )
        dtype = torch.float64 if wide else torch.float32
        inputs = read_recorded(self.inputs_, arrays).inputs
        shipped = Deployable(copy.deepcopy(self.model_), self.inputs_).to(device, dtype).eval()
        answers = []
        with torch.no_grad():
            for rows in torch.arange(len(next(iter(inputs.values())))).split(BATCH):
                some = {name: _cast(values[rows], dtype).to(device) for name, values in inputs.items()}
                answers.append(shipped(some)[self.decision].double().cpu())
        return torch.cat(answers).numpy()


def _is_mapping(X: Any) -> bool:  # noqa: N803 (scikit-learn's name)
    return isinstance(X, Mapping) and not issparse(X)  # some sparse matrices are dicts


def _input_spec(splits: Splits, name: str) -> InputSpec:
    array, (mean, deviation) = splits.train.inputs[name], splits.scales.get(name, (None, None))
    ragged = f"{name}{LENGTH}" in splits.train.inputs
    return InputSpec(tuple(array.shape[1:]), array.dtype, ragged, splits.train.views.get(name), mean, deviation)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _print(record: Record) -> None:
    scores = ", ".join(f"{name} {value:.3f}" for name, value in record["validation"].items())
    print(f"epoch {record['epoch']}: validation {scores}")
