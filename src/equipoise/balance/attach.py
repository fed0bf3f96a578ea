"""What a balancer knows of a user's model: where its encoders are, and which optimiser moves them."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.balance.features import Tap
from equipoise.balance.update_scale import Part, tensors_held

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


def unwrap_optimizers(optimizer: Any | None) -> list[Optimizer]:
    """List the torch optimisers in one or several, each bare or wrapped."""
    if optimizer is None:
        return []
    listed = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not listed:
        msg = "attach: optimizer=[] holds no optimiser; type attach(…, optimizer=optimizer), or a list of them"
        raise ValueError(msg)
    return [unwrap_optimizer(each) for each in listed]


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimiser inside a wrapper of Accelerate, Fabric or Lightning."""
    inner = getattr(optimizer, "optimizer", None)  # every one of them keeps it under this name
    if inner is not None:
        return unwrap_optimizer(inner)
    if not isinstance(optimizer, Optimizer):
        msg = f"attach: optimizer should be a torch.optim.Optimizer or a list of them, found {type(optimizer).__name__}"
        raise TypeError(msg)
    return optimizer


def keep_compiled_buffers() -> None:
    """Let two passes run through one compiled backward, which then may not hand its buffers away in the first."""
    from torch._functorch import config  # a module that torch.compile has loaded by then

    config.donated_buffer = False  # ty: ignore[invalid-assignment]


@final
class Attachment:
    """The encoders of a model by modality, looked up afresh at each call, and the optimisers that move them.

    Args:
        model: The model, bare or wrapped; None when ``encoders`` holds modules or tensors.
        encoders: Per modality a module, a dotted name, or a list of modules, names and parameters.
        optimizer: The optimiser of these parameters, or a list of several, bare or wrapped.
        heads: Whether the parts of the fused head go with the encoders.
    """

    def __init__(
        self,
        model: nn.Module | None,
        encoders: Mapping[str, Encoder] | None,
        optimizer: Any | None = None,
        *,
        heads: bool = False,
    ) -> None:
        self.layers = layers(model)
        self.model = self.layers[-1] if self.layers else None
        self.optimizers = unwrap_optimizers(optimizer)
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
        parts = self.parts(heads=heads)
        computed = sorted({name for name, own in parts.items() if not all(part.tensor.is_leaf for part in own)})
        if computed:
            msg = (
                f"attach: the fused head's part of {', '.join(map(repr, computed))} is computed from other parameters "
                "(a parametrization), and cannot be scaled; type heads='plain'"
            )
            raise ValueError(msg)
        if self.optimizers:
            self._check_optimizers(parts)

    def _check_optimizers(self, parts: Mapping[str, Sequence[Part]]) -> None:
        held = {id(tensor) for optimizer in self.optimizers for tensor in tensors_held(optimizer)}
        loose = {name: [id(part.tensor) in held for part in own].count(False) for name, own in parts.items()}
        if any(loose.values()):
            listed = ", ".join(
                f"{count} of {len(parts[name])} of encoder {name!r}" for name, count in loose.items() if count
            )
            msg = (
                f"attach: expected optimisers that hold every trainable tensor of the encoders; {listed} are held by "
                "none that was given. Type attach(…, optimizer=[first, second, …]) with all of them, or "
                "requires_grad_(False) for tensors that stay as they are"
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

    def everything(self, modality: str, *, heads: bool) -> list[Tensor]:
        """Every parameter and buffer of one encoder: what has to stand still when it is frozen.

        Args:
            modality: Whose encoder.
            heads: Whether to add its part of the fused head.
        """
        parts = self.head_parts().get(modality, []) if heads else []
        own = _tensors(self.encoders[modality], lambda module: [*module.parameters(), *module.buffers()])
        return [*own, *(part.of(part.tensor.detach()) for part in parts)]

    def parts(self, *, heads: bool) -> dict[str, list[Part]]:
        """Trainable tensors per modality as they are now, with its part of the fused head where ``heads`` says so."""
        own = {name: [Part(tensor) for tensor in tensors] for name, tensors in self.parameters().items()}
        named = {id(part.tensor) for parts in own.values() for part in parts}
        for name, parts in self.head_parts().items() if heads else ():
            loose = [part for part in parts if id(part.tensor) not in named and part.tensor.requires_grad]
            own.setdefault(name, []).extend(loose)
        return own

    def head_parts(self) -> dict[str, list[Part]]:
        """Each modality's own part of the fused head, where the model tells: `LateFusion` with an additive fusion."""
        tells = getattr(self.model, "fused_head_parts", None)
        return {name: [Part(*part) for part in parts] for name, parts in tells().items()} if tells is not None else {}

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
    names = dict(model.named_modules(remove_duplicate=False))
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
