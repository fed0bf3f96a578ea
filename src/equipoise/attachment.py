"""What a balancer knows of a user's model: where its encoders are, and which optimiser moves them."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.features import Tap

Encoder: TypeAlias = "nn.Module | str | Sequence[nn.Module | Tensor | str]"

# What wraps a user's model, and where each keeps it.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "_FabricModule": "_forward_module",
}


def layers(model: nn.Module | None) -> list[nn.Module]:
    """A model and what is inside it, wrapper by wrapper (DDP, torch.compile, Fabric), down to the user's own."""
    found: list[nn.Module] = []
    while model is not None:
        found.append(model)
        inner = getattr(model, _WRAPPERS.get(type(model).__name__, ""), None)
        model = inner if isinstance(inner, nn.Module) else None
    return found


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimiser inside a wrapper of Accelerate, Fabric or Lightning."""
    inner = getattr(optimizer, "optimizer", None)  # every one of them keeps it under this name
    if inner is not None:
        return unwrap_optimizer(inner)
    if not isinstance(optimizer, Optimizer):
        msg = f"attach: optimizer should be a torch.optim.Optimizer, found {type(optimizer).__name__}"
        raise TypeError(msg)
    return optimizer


def moves_with_the_gradient(optimizer: Optimizer) -> bool:
    """Whether a factor on the gradient is a factor on the step. Adam and its kin divide it out again."""
    return isinstance(optimizer, (SGD, ASGD))


def taken(optimizer: Optimizer) -> Tensor | int:
    """One, or zero where a GradScaler told a fused optimiser, which it calls in any case, to skip the step."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return 1 if found_inf is None else (found_inf == 0).to(torch.int64)


def keep_compiled_buffers() -> None:
    """Let two passes run through one compiled backward, which then may not hand its buffers away in the first."""
    from torch._functorch import config  # a module that torch.compile has loaded by then

    config.donated_buffer = False  # ty: ignore[invalid-assignment]


@final
class Attachment:
    """The encoders of a model by modality, looked up afresh at each call, and the optimiser that moves them.

    Args:
        model: The model, bare or wrapped; None when ``encoders`` holds modules or tensors.
        encoders: Per modality a module, a dotted name, or a list of modules, names and parameters.
        optimizer: The optimiser of these parameters, bare or wrapped.
    """

    def __init__(
        self, model: nn.Module | None, encoders: Mapping[str, Encoder] | None, optimizer: Any | None = None
    ) -> None:
        self.layers = layers(model)
        self.model = self.layers[-1] if self.layers else None
        self.optimizer = unwrap_optimizer(optimizer) if optimizer is not None else None
        self._told = encoders
        self._taps: dict[str, tuple[nn.Module, Tap]] = {}
        empty = [name for name, parts in self.encoders.items() if not _tensors(parts, _parameters_of)]
        if empty:
            listed = ", ".join(map(repr, empty))
            msg = (
                f"attach: every encoder needs parameters to balance, found none in {listed}; "
                "name the module that holds the weights, e.g. encoders={'audio': model.audio_net}"
            )
            raise ValueError(msg)

    @property
    def encoders(self) -> dict[str, list[nn.Module | Tensor]]:
        """The parts of each encoder, as they are now: a part may have been replaced since."""
        return {name: _parts(self.model, part) for name, part in self._named().items()}

    def parameters(self) -> dict[str, list[Tensor]]:
        """Trainable tensors per modality, as they are now."""
        return {
            name: [tensor for tensor in _tensors(parts, _parameters_of) if tensor.requires_grad]
            for name, parts in self.encoders.items()
        }

    def everything(self, modality: str) -> list[Tensor]:
        """Every parameter and buffer of one encoder: what has to stand still when it is frozen."""
        return _tensors(self.encoders[modality], lambda module: [*module.parameters(), *module.buffers()])

    def tap(self, method: str) -> list[RemovableHandle]:
        """Have each encoder's outputs remembered from now on; what stops it again.

        Args:
            method: Who asks.

        Raises:
            ValueError: If an encoder is not one module, and so has no output.
        """
        modules = {name: parts[0] for name, parts in self.encoders.items() if len(parts) == 1}
        self._taps = {name: (module, Tap()) for name, module in modules.items() if isinstance(module, nn.Module)}
        loose = ", ".join(repr(name) for name in self.encoders if name not in self._taps)
        if loose:
            msg = (
                f"attach: {method}(at='features') reads what each encoder gives, and expected one module for each; "
                f"found bare parameters or several parts for {loose}. Type encoders={{'audio': model.audio_net, …}} "
                f"with the module whose output is the feature, or {method}(at='parameters')"
            )
            raise ValueError(msg)
        handles = [module.register_forward_hook(tap) for module, tap in self._taps.values()]
        for handle in handles:  # also when nobody says so: a hook that nobody reads would hold on to a graph
            weakref.finalize(self, handle.remove).atexit = False
        return handles

    def taps(self) -> dict[str, Tap | None]:
        """What remembers the outputs by modality; None where an encoder has been replaced since."""
        now = self.encoders
        return {name: tap if now.get(name) == [module] else None for name, (module, tap) in self._taps.items()}

    def compiled(self) -> bool:
        """Whether any part of what was attached has been through torch.compile."""
        whole = [*self.layers, *(part for parts in self.encoders.values() for part in parts)]
        modules = (part for top in whole if isinstance(top, nn.Module) for part in top.modules())
        return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in modules)

    def _named(self) -> Mapping[str, Encoder]:
        if self._told is not None:
            if not self._told:
                msg = "attach: encoders={} names no modality; expected one entry per modality"
                raise ValueError(msg)
            return self._told
        own = getattr(self.model, "encoders", None)
        if isinstance(own, (Mapping, nn.ModuleDict)) and len(own):
            return dict(own.items())
        children = [name for name, _ in self.model.named_children()] if self.model is not None else []
        msg = (
            "attach: expected to be told which parts of the model are encoders; "
            f"the model ({type(self.model).__name__}) has no mapping `encoders`. "
            f"Its parts are {children}: type attach(model, encoders={{'audio': model.…, 'video': model.…}})"
        )
        raise ValueError(msg)


def _parts(model: nn.Module | None, encoder: Encoder) -> list[nn.Module | Tensor]:
    listed = [encoder] if isinstance(encoder, (nn.Module, str, Tensor)) else list(encoder)
    found: list[nn.Module | Tensor] = []
    for part in listed:
        if isinstance(part, str):
            found.append(_submodule(model, part))
        elif isinstance(part, (nn.Module, Tensor)):
            found.append(part)
        else:
            msg = f"attach: an encoder is a module, a dotted name or a list of these, found {type(part).__name__}"
            raise TypeError(msg)
    return found


def _submodule(model: nn.Module | None, name: str) -> nn.Module:
    if model is None:
        msg = f"attach: encoder {name!r} is a name, so the model is needed too: attach(model, encoders=…)"
        raise ValueError(msg)
    names = dict(model.named_modules())
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its parts are {[n for n, _ in model.named_children()]}"
    msg = f"attach: {type(model).__name__} has no part called {name!r}; {hint}"
    raise ValueError(msg)


def _parameters_of(module: nn.Module) -> Iterable[Tensor]:
    """What `module.parameters()` gives, without making a name for each: this runs in every step."""
    waiting = [module]
    while waiting:
        found = waiting.pop()
        yield from (tensor for tensor in found._parameters.values() if tensor is not None)
        waiting.extend(child for child in reversed(found._modules.values()) if child is not None)


def _tensors(parts: Iterable[nn.Module | Tensor], of: Callable[[nn.Module], Iterable[Tensor]]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for part in parts:
        for tensor in [part] if isinstance(part, Tensor) else of(part):
            found.setdefault(id(tensor), tensor)
    return list(found.values())


@final
class UpdateScale:
    """Scales what an optimiser does to encoders: p ← p_before + factor · (p_after − p_before).

    Under Adam and its kin this is what a factor on the gradient means elsewhere.

    Args:
        attachment: The encoders and their optimiser.
        touches: Which tensors of an encoder the factor applies to.
    """

    def __init__(self, optimizer: Optimizer, attachment: Attachment, touches: Callable[[Tensor], bool]) -> None:
        self._attachment, self._touches = attachment, touches
        self._noted: list[tuple[dict[str, Tensor], Tensor]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._handles = (
            optimizer.register_step_pre_hook(self._remember),
            optimizer.register_step_post_hook(self._blend),
        )

    def note(self, factors: Mapping[str, Tensor], finite: Tensor) -> None:
        """The factors of one backward pass; a step over several of them takes their mean.

        Args:
            factors: One per modality.
            finite: Whether the gradients were finite; where they were not, the step is skipped and its factors with it.
        """
        self._noted.append((dict(factors), finite))

    def remove(self) -> None:
        """Let the optimiser go."""
        for handle in self._handles:
            handle.remove()

    def _remember(self, *_: object) -> None:
        # Factors come later: Lightning runs the model inside the step, in a closure.
        touched = {id(t): t for tensors in self._attachment.parameters().values() for t in tensors if self._touches(t)}
        self._before = [(tensor, tensor.detach().clone()) for tensor in touched.values()]

    @torch.no_grad()
    def _blend(self, *_: object) -> None:
        if self._noted:
            factors = self._factors()
            for tensor, before in self._before:
                # lerp is exact at both ends: a factor of one changes no bit, a factor of zero restores every bit.
                tensor.copy_(torch.lerp(before, tensor.detach(), factors[id(tensor)].to(tensor.dtype)))
        self._before, self._noted = [], []

    def _factors(self) -> dict[int, Tensor]:
        """The mean over backward passes that were not skipped, and over the owners of a shared tensor."""
        counted = torch.stack([finite for _, finite in self._noted])
        owned: dict[int, list[Tensor]] = {}
        for name, tensors in self._attachment.parameters().items():
            noted = torch.stack([factors[name] for factors, _ in self._noted])
            mean = torch.where(counted, noted, 0).sum() / counted.sum().clamp(min=1)
            for tensor in tensors:
                owned.setdefault(id(tensor), []).append(mean)
        return {key: torch.stack(means).mean() for key, means in owned.items()}
