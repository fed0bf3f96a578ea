"""scikit-learn: balanced models as estimators, for cross-validation, grid searches, pipelines and pickles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, final

import numpy as np

from equipoise.balance.balancer import Balancer
from equipoise.data.own.columns import first_few
from equipoise.util.errors import BadInput
from equipoise.util.extras import needs

with needs(__name__, "sklearn"):
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import column_or_1d
from equipoise.integrations.sklearn_base import Columns, Multimodal


@final
class Modalities(dict[str, Any]):
    """A dict of arrays {modality: [N, …]} that scikit-learn can cut into folds.

    Of a plain dict it counts the keys. This one has a `shape`, and an index that is no name selects samples.

    Example:
        >>> samples = Modalities({"imu": np.zeros((5, 3, 20)), "ecg": np.ones((5, 8))})
        >>> samples.shape, samples[[0, 2]]["imu"].shape
        ((5,), (2, 3, 20))
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of samples, (N,)."""
        sizes = {name: len(values) for name, values in self.items() if values is not None}
        if len({*sizes.values()}) != 1:
            raise BadInput(f"Modalities: expected arrays of one length, found {sizes}")
        return (next(iter(sizes.values())),)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        rows = key[0] if isinstance(key, tuple) else key  # scikit-learn asks for [rows, ...]
        return Modalities({name: None if values is None else _take(values, rows) for name, values in self.items()})


def _is_weight(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and 0 < float(value) < math.inf


def _take(values: Any, rows: Any) -> Any:
    if isinstance(values, (list, tuple)):  # samples that differ in length
        return [values[row] for row in np.arange(len(values))[rows]]
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


@final
class MultimodalClassifier(ClassifierMixin, Multimodal):
    """A balanced late-fusion classifier of samples that several sensors saw.

    Args:
        modalities: Per modality the columns of X, by name or number, where X is a DataFrame or a matrix. NaN in all
            columns of a modality says that a sample lacks it. None for one modality of all columns.
        method: The balancing method: a name, such as "mimo" or "msl"; or a `Balancer`, or its class. "auto" is the
            automatic model of the command, which takes the time of three; "instant" its closed-form heads alone.
        method_params: Parameters of the method, {"penalty": 10.0}.
        epochs: Passes over the training samples; "auto": by their number, see `equipoise.training.recipe`.
        steps: The least number of steps: where `epochs` passes take fewer, there are more epochs.
        batch: Samples per step.
        lr: Learning rate.
        encoder: As `Settings` has it: "auto" chooses by the shape of each modality.
        metric: By which the best epoch is chosen, where `settings` ask for that.
        positive: The class that "auroc", "auprc" and "recall" are of; of labels its column. None: of two classes the
            rarer one, and the mean over all of more classes and of labels.
        decision: "committee": all heads vote, with weights fitted on the samples held out. "fused": the fused head.
        validation_fraction: The share of the samples that `fit` holds out, at most half.
        class_weight: None, "balanced", or weights {class: number}, 1 for those not named, in training, in the closed
            form and in the committee. Of labels, weights of their positives by column.
        settings: More fields of `Settings` by name, {"fusion": "sum", "select": "best"}; the others are those of
            `equipoise.training.recipe`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        random_state: Of the weights, the batches and the samples held out.
        verbose: Print the validation of each epoch.

    Warns:
        ConvergenceWarning: If the model says the same of every sample held out, or took fewer than 200 steps.

    Attributes:
        classes_: The classes; of several labels, the numbers of their columns.
        model_: The trained model, on the CPU.
        inputs_: What the model reads of each modality.
        curves_: A record of each epoch.
        n_features_in_: Columns of X in fit, where X was no dict.
        feature_names_in_: Their names, where X was a DataFrame.
    """

    classes_: np.ndarray

    def __init__(
        self,
        *,
        modalities: Columns | None = None,
        method: str | Balancer | type[Balancer] = "mimo",
        method_params: Mapping[str, Any] | None = None,
        epochs: int | Literal["auto"] = "auto",
        steps: int = 500,
        batch: int = 64,
        lr: float = 2e-3,
        encoder: str = "auto",
        metric: str = "auto",
        positive: Any = None,
        decision: str = "committee",
        validation_fraction: float = 0.25,
        class_weight: Mapping[Any, float] | str | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        how = (method, method_params, epochs, steps, batch, lr, encoder, metric, decision, validation_fraction)
        super().__init__(modalities, *how, settings, device, random_state, verbose)
        self.class_weight, self.positive = class_weight, positive

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _target(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
        missing = [at for at, one in enumerate(y.tolist()) if one is None]
        if missing:
            expected = "y: expected a class for every sample"
            found = f"found None in {len(missing)} of {len(y)} ({first_few(missing)})"
            raise BadInput(f"{expected}, {found}; leave these out")
        check_classification_targets(y)
        if y.ndim == 2 and type_of_target(y) != "multilabel-indicator":
            expected = "expected one class per sample [N], or 0 and 1 for each of several labels [N, L]"
            raise BadInput(f"y: {expected}, found other values of shape {y.shape}")
        self.classes_, numbers = np.unique(y, return_inverse=True) if y.ndim == 1 else (np.arange(y.shape[1]), y)
        if len(self.classes_) < 2:
            raise BadInput(f"y: expected two classes or more, found 1 class, {self.classes_[0]!r}")
        # Classes are numbers in training, and columns are labels.
        task, prefix = ("classes", "") if y.ndim == 1 else ("labels", "label_")
        return numbers, {"task": task, "class_weight": self._class_weight(), "positive": self._positive(prefix)}

    def _positive(self, prefix: str) -> str:
        """Return the name of the positive class or label in training."""
        names = self.classes_.tolist()
        if self.positive is None:
            return "auto"
        if self.positive not in names:
            raise BadInput(f"positive: expected a class of y, {', '.join(map(repr, names))}, found {self.positive!r}")
        return f"{prefix}{names.index(self.positive)}"

    def _class_weight(self) -> str:
        """Give the weights of the classes as settings hold them."""
        weight, names = self.class_weight, self.classes_.tolist()
        if weight is None or (isinstance(weight, str) and weight == "balanced"):
            return weight or "none"
        expected = f"class_weight: expected None, 'balanced' or weights by class, {dict.fromkeys(names, 1.0)}"
        if not isinstance(weight, Mapping):
            raise BadInput(f"{expected}, found {weight!r}")
        # As in scikit-learn: a fold may lack a class that has a weight, but then every other has one, too.
        unknown = [name for name in weight if name not in names]
        if unknown and any(name not in weight for name in names):
            listed, found = (", ".join(map(repr, some)) for some in (names, unknown))
            raise BadInput(f"class_weight: expected classes of y, {listed}, found {found}")
        wrong = [f"{value!r} for {name!r}" for name, value in weight.items() if not _is_weight(value)]
        if wrong:
            raise BadInput(f"class_weight: expected numbers above zero, found {', '.join(wrong)}")
        return ",".join(str(float(weight.get(name, 1))) for name in names)

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803 (scikit-learn's name)
        """Give the probability of each class or label, [N, C], in the order of `classes_`.

        Args:
            X: As in `fit`. A dict may lack modalities, or have None in their place.
        """
        return self._answer(X)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803 (scikit-learn's name)
        """Give the most probable class of each sample, [N]; or 0 and 1 for each of its labels, [N, L].

        Args:
            X: As for `predict_proba`.
        """
        probabilities = self._answer(X)
        if self.model_.known_task().kind == "labels":
            return (probabilities > 0.5).astype(np.int64)
        return self.classes_[probabilities.argmax(axis=1)]


@final
class MultimodalRegressor(RegressorMixin, Multimodal):
    """A balanced late-fusion model of one number or several for each sample that several sensors saw.

    Args:
        modalities: As for `MultimodalClassifier`, like all but `loss`.
        method: The balancing method.
        method_params: Its parameters.
        epochs: Passes over the training samples; "auto": by their number, see `equipoise.training.recipe`.
        steps: The least number of steps.
        batch: Samples per step.
        lr: Learning rate.
        encoder: The kinds of encoders.
        metric: By which the best epoch is chosen, where `settings` ask for that.
        loss: "huber", "mse" or "mae", between standardised numbers; "auto": huber.
        decision: "committee" or "fused".
        validation_fraction: The share of the samples that `fit` holds out.
        settings: More fields of `Settings` by name.
        device: "auto", "cpu", "cuda" or "cuda:1".
        random_state: Of the weights, the batches and the samples held out.
        verbose: Print the validation of each epoch.

    Attributes:
        model_: The trained model, on the CPU.
        inputs_: What the model reads of each modality.
        curves_: A record of each epoch.
        n_features_in_: Columns of X in fit, where X was no dict.
        feature_names_in_: Their names, where X was a DataFrame.
    """

    def __init__(
        self,
        *,
        modalities: Columns | None = None,
        method: str | Balancer | type[Balancer] = "mimo",
        method_params: Mapping[str, Any] | None = None,
        epochs: int | Literal["auto"] = "auto",
        steps: int = 500,
        batch: int = 64,
        lr: float = 2e-3,
        encoder: str = "auto",
        metric: str = "auto",
        loss: str = "auto",
        decision: str = "committee",
        validation_fraction: float = 0.25,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        how = (method, method_params, epochs, steps, batch, lr, encoder, metric, decision, validation_fraction)
        super().__init__(modalities, *how, settings, device, random_state, verbose)
        self.loss = loss

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _target(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        self._columns = y.ndim == 2
        return y, {"task": "regression", "loss": self.loss}

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803 (scikit-learn's name)
        """Give the number of each sample, [N]; or its numbers, [N, D], where y had columns.

        Args:
            X: As in `fit`. A dict may lack modalities, or have None in their place.
        """
        numbers = self._answer(X)
        return numbers if self._columns else numbers[:, 0]
