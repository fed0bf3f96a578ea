"""A method: the hooks that it overrides, its state with one row per modality, and the epochs in which it acts."""

import inspect
import math
from abc import ABC
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from typing_extensions import Self

from equipoise.balance import collectives
from equipoise.balance.losses import FUSED, HeldDecision, LossValues, Weights, check_weights
from equipoise.util.errors import demand

RouteName: TypeAlias = Literal["loss", "fused", "weighted", "table", "gram"]
Score: TypeAlias = Literal["accuracy", "entropy", "magnitude"]
View: TypeAlias = Literal["head", "detached", "split"]


class ModalityState(nn.Module, ABC):
    """A module whose buffers hold one row per modality: saved, moved and loaded by name, not by position.

    The modalities are learnt at the first call or from a saved state. A state saved under another order of modalities
    is put into this one's order when loaded.
    """

    modalities: tuple[str, ...]
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, for `repr`."""
        made = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        try:
            given = signature.bind_partial(made, *args, **kwargs)
        except TypeError as error:
            names = ", ".join([*signature.parameters][1:]) or "none"
            raise TypeError(f"{cls.__name__}: {error}; its parameters are: {names}") from None
        given.apply_defaults()
        made.__dict__["_arguments"] = {name: value for name, value in given.arguments.items() if name != "self"}
        return made

    def __init__(self) -> None:
        super().__init__()
        self.modalities = ()
        self._rows: dict[str, Tensor | dict[str, Tensor]] = {}  # what a row starts as: alike for all, or by modality

    @property
    def objectives(self) -> tuple[str, ...]:
        """The names of the losses, the fused one first, without further objectives."""
        return (FUSED, *self.modalities)

    def extra_repr(self) -> str:
        """List the arguments that the balancer was made with."""
        return ", ".join(f"{name}={value!r}" for name, value in self._arguments.items() if value is not None)

    def check_arguments(self, *rules: tuple[bool, str, object]) -> None:
        """Raise one message for every rule that does not hold, and every argument that is none of its choices.

        Args:
            rules: Whether the rule holds, what was expected in words, and what was found. Choices need none: they are
                the literals in the signature.
        """
        choices = []
        for name, kind in get_type_hints(type(self).__init__).items():
            kinds = [kind, *get_args(kind)]
            known = [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]
            known += [None] if type(None) in kinds and known else []
            if known:
                expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
                choices.append((self._arguments[name] in known, f"{name} should be {expected}", self._arguments[name]))
        demand(type(self).__name__, *rules, *choices)

    def add_state(self, name: str, shape: tuple[int, ...] = (), fill: float = 0.0) -> None:
        """Declare a state: a float buffer of shape [K, *shape], filled with ``fill`` until something is learnt."""
        self._rows[name] = torch.full(shape, fill)
        self.register_buffer(name, torch.full((0, *shape), fill))

    def add_given_state(self, name: str, rows: Mapping[str, float | Tensor]) -> None:
        """Declare a state whose rows a user gave by modality."""
        self._rows[name] = {m: torch.as_tensor(row, dtype=torch.float64) for m, row in rows.items()}
        self.register_buffer(name, torch.zeros(0))

    def settle(self, modalities: Sequence[str], device: torch.device) -> None:
        """Fix the modalities, once, and follow the losses to their device."""
        if not self.modalities and modalities:
            for name, rows in self._rows.items():
                if isinstance(rows, dict) and set(rows) != set(modalities):
                    raise ValueError(f"{name}: expected one entry for each of {list(modalities)}, found {list(rows)}")
                tensor = torch.stack([rows[owner] if isinstance(rows, dict) else rows for owner in modalities])
                # Numbers that a user gave keep double precision, where the device has it.
                setattr(self, name, tensor.to(device, torch.float32 if device.type == "mps" else tensor.dtype))
            self.modalities = tuple(modalities)
        if any(buffer.device != device for buffer in self.buffers()):
            self.to(device)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the buffers do not say: the modality of each row, and the method's own numbers."""
        return {"modalities": list(self.modalities), "host": self.host_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what ``get_extra_state`` returned; the modalities were taken over before the buffers were."""
        self.load_host_state(state["host"])

    def host_state(self) -> dict[str, Any]:
        """Return the plain numbers that a method keeps outside its buffers."""
        return {}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Load what ``host_state`` returned."""

    def _load_from_state_dict(  # ty: ignore[incompatible-method-override]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        saved = state_dict.get(prefix + "_extra_state", {}).get("modalities", [])
        if saved and not self.modalities:
            self.settle(saved, next(iter(self.buffers()), torch.empty(0)).device)
        if saved and set(saved) != set(self.modalities):
            errors: list[str] = rest[-1]
            errors.append(f"saved for modalities {saved}, but this balancer serves {list(self.modalities)}")
            return
        order = [saved.index(name) for name in self.modalities] if saved else []
        mine = {prefix + name for name in self._rows} if order else set()
        reordered = {key: value[order] if key in mine else value for key, value in state_dict.items()}
        super()._load_from_state_dict(reordered, prefix, *rest)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move with a model, but do not follow it into half precision: running means would stand still there."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)


class MethodHooks(ModalityState):
    """The hooks that a balancer calls on its method, and what it needs to know of it beforehand."""

    # How encoders learn: "loss" (one weighted sum for all parameters), "fused" (from the fused loss, times a factor),
    # "weighted" (from their own weighted sum, times a factor), "table" (each encoder from a weighted sum of its own),
    # "gram" (from a mixture that their gradients decide).
    route: RouteName = "loss"
    # Where the "gram" route takes the gradients that decide: at an encoder's parameters, or at its output.
    at: Literal["parameters", "features"] = "parameters"
    # The uni-modal outputs that the method wants a model to offer.
    unimodal: ClassVar[View | None] = "head"
    # The modality dropout that the method wants of a model.
    modality_dropout: float = 0.0
    # Values worth trying for each parameter, for tuning that gives every method the same number of trials.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # Readers of parameters whose values a plain word cannot express, for `name=value` on a command line.
    words: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    # Metrics per modality that `end_epoch` must be given.
    needs: tuple[str, ...] = ()
    needs_fused: ClassVar[bool] = True
    needs_unimodal: ClassVar[bool] = True
    # True if a method off the "loss" route has to know the encoders.
    needs_encoders: bool = True
    # Scores of each modality that have to be given beside the losses, which do not tell them: the "accuracy" of its
    # answers, their "entropy", the mean "magnitude" of its outputs; several of them one column each.
    scored_by: tuple[Score, ...] = ()
    # Modalities of which each sample has a score of its own, from 0 to 1, that has to be given beside the losses: the
    # data tells it, or the user. `sample_factors` reads it.
    scored_samples: tuple[str, ...] = ()
    # Prefix of the further objectives, one per modality, that have to be given beside the losses; "" for none.
    further: ClassVar[str] = ""
    # Over how many permutations of features the further objectives are averaged, where that is what they are.
    permutations: int = 0
    # True if scores are logarithms of probabilities, so that their mean over ranks is taken inside.
    logarithmic_scores: ClassVar[bool] = False
    # True if `weigh` answers with a factor per encoder that acts on gradients or updates.
    modulates: bool = False
    # True if the factor of an encoder also acts on its modality's part of an additive fused head.
    scales_heads: bool = False
    # True if the fused head also learns from the uni-modal losses of its own shares, on the "weighted" route.
    shares_train_heads: ClassVar[bool] = False
    refines: ClassVar[bool] = False
    # True if the method puts encoders back itself after a step of the optimiser.
    restores: ClassVar[bool] = False
    without_optimizer: ClassVar[str] = (
        "this method multiplies gradients, which Adam and its variants divide out again; with such an optimiser, type "
        "balancer.attach(…, optimizer=optimizer), and it will scale the updates instead"
    )
    # True if the method keeps state that moves with every step that was not skipped.
    advances: ClassVar[bool] = False

    def weigh(self, values: LossValues) -> Weights:  # noqa: ARG002
        """Weigh the losses by their values. Every method but those on the "gram" route answers this."""
        returned = "that returns equipoise.Weights(losses=…), one weight of the fused loss and of each modality's"
        raise NotImplementedError(f"{type(self).__name__}: expected a method `weigh(self, values)` {returned}")

    def mix(self, gram: Tensor) -> Tensor:
        """Mix the gradients of each encoder.

        Args:
            gram: Inner products of the gradients at every encoder, shape [blocks, n, n], scaled so that the largest
                is one; entry 0 is the fused objective. n is 2 (fused, own) at separate encoders, else K + 1, as it is
                at a trunk that all losses reach.

        Returns:
            Coefficients of shape [blocks, n].
        """
        raise NotImplementedError(type(self).__name__)

    def refine(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """Make a last change to the gradient of one encoder, tensor by tensor.

        Args:
            modality: Whose encoder it is.
            mixed: The gradient that the table gives.
            parts: The gradients it was made of, one list of tensors per objective.
        """
        return mixed

    def learn(self, metrics: dict[str, Tensor]) -> None:
        """Learn from the end of an epoch. ``metrics`` holds what ``needs_now`` named, one value per modality."""

    @property
    def needs_now(self) -> tuple[str, ...]:
        """The metrics that the end of the present epoch has to be given: `needs`, where a method says nothing else."""
        return self.needs

    def score(self, losses: Tensor) -> Tensor:
        """Return a modality's score from the losses of its samples, for methods that compare modalities.

        It is the mean loss, or, of cross-entropies f_i, the log of the mean probability of the right class, log mean_i
        exp(−f_i). From a scalar loss that is −f: the logarithm of the geometric mean, which is at most the other.

        Samples without the sensor come with a loss of zero, or of infinity for a logarithm, and the result is divided
        by the share of the others: a score is a mean over samples, to which such a sample adds nothing.
        """
        flat = losses.reshape(-1)
        return torch.logsumexp(-flat, dim=0) - math.log(flat.numel()) if self.logarithmic_scores else losses.mean()

    def sample_factors(self, modality: str, scores: Tensor) -> Tensor:
        """Return the factor of each sample on the gradient at the output of an encoder.

        Works on the routes "fused", "weighted" and "table". `weigh` answers with the mean over samples, for the table.

        Args:
            modality: One of `scored_samples`.
            scores: Of the samples [B]; the mean of the others where a sample lacks the sensor.
        """
        raise NotImplementedError(type(self).__name__)

    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> Tensor | None:
        """Act on the graph of a step, once its weights are known, fresh or held.

        Args:
            losses: The mean of each over the samples that have the sensor, with its graph.
            weights: The method's decision.
            scored: True if scores were passed beside the losses.

        Returns:
            A loss of the method's own, a scalar with its graph that counts at weight one everywhere; None for none.
        """

    def attached(self, model: nn.Module | None) -> None:
        """Called when a model was attached, unwrapped; the place to choose a form that fits it."""

    @property
    def remarks(self) -> dict[str, str]:
        """Remarks for a row of results on how the method ran, beyond its parameters."""
        return {}

    def task_problem(self, kind: str) -> str:  # noqa: ARG002
        """Say why the method does not work for a task: "classes", "labels" or "regression"; "" where it does."""
        return ""

    def smoothness_problem(self) -> str:
        """Say why no learning rate is known to be safe for the method's objective; "" where `smoothness` gives one."""
        return (
            f"{type(self).__name__} follows no gradient of a smooth objective, so no step is known to be safe; choose "
            "msl, ew or mimo"
        )

    def smoothness(self, of_loss: Callable[..., tuple[float, float]], modalities: Sequence[str]) -> float:
        """Return the smoothness constant of the method's objective.

        Args:
            of_loss: Gives the smoothness and the Lipschitz constant of a loss by name, in all parameters or, with
                ``head_alone=True``, in those of the modality's head.
            modalities: Their names.
        """
        raise NotImplementedError(type(self).__name__)

    def touches(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Return True if the factor of an encoder applies to this tensor of it."""
        return True

    def advance(self, values: LossValues, finite: Tensor) -> None:
        """Move the state on by a step; ``finite`` says, on the device, whether the step will be taken."""

    def stepped(self, taken: Tensor | int = 1) -> None:
        """Called after each step of the attached optimiser; ``taken`` is 0 where a fused one skipped it inside."""

    @property
    def phase(self) -> Hashable | None:
        """Everything that a step depends on besides tensors that change in place.

        A step that was recorded into a CUDA graph is recorded again when this changes. None: a step is never recorded;
        so it is for every method that keeps a `host_state` and does not answer this.
        """
        return () if type(self).host_state is ModalityState.host_state else None

    def generators(self) -> list[torch.Generator]:
        """List what the method draws from in a step, besides the device's own generator."""
        return []


class ScheduledMethod(MethodHooks):
    """A method that acts from one epoch to another: its hooks as routes call them.

    Args:
        start: First epoch in which the method modulates encoders; before it they train jointly.
        stop: First epoch in which it no longer does; None means never.
    """

    epoch: Tensor

    def __init__(self, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self.start, self.stop = start, stop
        self.group: collectives.Group = "world"
        self._held: HeldDecision | None = None
        self._table = torch.zeros(0, 0)
        self._has_trunk = False
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    @property
    def active(self) -> Tensor:
        """True in the epochs in which the method modulates, as a tensor on the device."""
        inside = self.epoch >= self.start
        return inside if self.stop is None else inside & (self.epoch < self.stop)

    @property
    def further_names(self) -> tuple[str, ...]:
        """The names of the further objectives, in the order of the modalities."""
        return tuple(f"{self.further} {name}" for name in self.modalities) if self.further else ()

    @property
    def _always(self) -> bool:
        return self.start == 0 and self.stop is None

    @final
    def gated(self, factors: Tensor) -> Tensor:
        """Return factors in the epochs in which the method is active, ones in the others."""
        return factors if self._always else torch.where(self.active, factors, torch.ones_like(factors))

    @final
    def decide(self, values: LossValues) -> Weights:
        """Call `weigh`, within the method's epochs."""
        weights = self.weigh(values)
        names = (*self.objectives, *self.further_names)
        check_weights(type(self).__name__, weights, names, len(self.modalities), table=self.route == "table")
        return weights if weights.encoders is None else weights._replace(encoders=self.gated(weights.encoders))

    @final
    def mixed(self, gram: Tensor) -> Tensor:
        """Call `mix`, within the method's epochs; in the others encoders learn from the fused loss."""
        mixture = self.mix(gram)
        if self._always:
            return mixture
        joint = torch.zeros_like(mixture)
        joint[..., 0] = 1
        return torch.where(self.active, mixture, joint)

    @final
    def refined(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Call `refine`, within the method's epochs."""
        refined = self.refine(modality, mixed, parts)
        if self._always:
            return refined
        return [torch.where(self.active, new, old) for new, old in zip(refined, mixed, strict=True)]

    @final
    def advance_once(self, values: LossValues, finite: Tensor) -> None:
        """Call `advance`, when training, and once for all micro-batches of a window."""
        held = self.held_decision
        if not self.training or (held is not None and held.advanced):
            return
        if held is not None:
            values, held.advanced = held.values or values, True
        self.advance(values, finite)

    @final
    def hold(self, decision: HeldDecision | None) -> None:
        """Keep one decision for every call until told otherwise: what `Window` does."""
        self._held = decision

    @final
    def averaged_over_ranks(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each tensor over the ranks that train one model, each with its weight."""
        return [collectives.mean(tensor, self.group) for tensor in tensors]

    @property
    def held_decision(self) -> HeldDecision | None:
        """The decision that is held for several calls; None where each call decides for itself."""
        return self._held if self._held is not None and self._held.weights is not None else None

    @final
    def fill_weights(self, weights: Weights) -> None:
        """Keep the table that some weights stand for. The trunk learns as the fused head does."""
        trunk = None
        if self._has_trunk:
            trunk = weights.on_heads
            # On these routes, what the fused loss reaches learns from it alone.
            if self.route == "fused" or (
                self.route == "weighted" and self.unimodal != "head" and not self.shares_train_heads
            ):
                trunk = torch.cat([trunk[:1], torch.zeros_like(trunk[1:])])
        self.fill(weights.table(len(self.modalities), trunk))

    @final
    def fill(self, values: Tensor) -> None:
        """Keep the table of this step, in place."""
        if self._table.shape != values.shape or self._table.device != values.device:
            with torch.inference_mode(False):
                self._table = torch.zeros_like(values)
        self._table.copy_(values)
