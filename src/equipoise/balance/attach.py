"""A user's model as a balancer sees it: where its encoders are, what they gave, and which optimisers move them."""

from __future__ import annotations

import difflib
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.balance.features import OutputHook
from equipoise.balance.needs import Block
from equipoise.balance.updates import ParameterPart, UpdateScale, moves_with_the_gradient, tensors_held, was_taken

Encoder: TypeAlias = "nn.Module | str | Sequence[nn.Module | Tensor | str]"
Encoders: TypeAlias = "Mapping[str, Encoder]"

# The classes that wrap a user's model, and the attribute under which each keeps it.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "_FabricModule": "_forward_module",
}


def layers(model: nn.Module | None) -> list[nn.Module]:
    """List a model and what is inside it, wrapper by wrapper (DDP, torch.compile, Fabric), down to the user's own."""
    listed: list[nn.Module] = []
    while model is not None:
        listed.append(model)
        inner = getattr(model, _WRAPPERS.get(type(model).__name__, ""), None)
        model = inner if isinstance(inner, nn.Module) else None
    return listed


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimiser inside a wrapper of Accelerate, Fabric or Lightning."""
    inner = getattr(optimizer, "optimizer", None)  # every one of them keeps it under this name
    if inner is not None:
        return unwrap_optimizer(inner)
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"attach: optimizer should be a torch.optim.Optimizer or a list of them, found {kind}")
    return optimizer


@final
class Attachment:
    """The encoders of a model by modality, looked up afresh at each call, and the optimisers that move them.

    Args:
        model: The model, bare or wrapped; None when ``encoders`` holds modules or tensors.
        encoders: Per modality a module, a dotted name, or a list of modules, names and parameters.
        optimizer: The optimiser of these parameters, or a list of several, bare or wrapped.
        trunk: The part that encoders have in common, in the same form; None for what the model calls `trunk`, where it
            also tells its encoders.
        block: What of an encoder its column and factor mean.
    """

    def __init__(
        self,
        model: nn.Module | None,
        encoders: Encoders | None,
        optimizer: Any | None = None,
        *,
        trunk: Encoder | None = None,
        block: Block = "all",
    ) -> None:
        self.layers = layers(model)
        self.model = self.layers[-1] if self.layers else None
        listed = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
        if optimizer is not None and not listed:
            call = "attach(…, optimizer=optimizer)"
            raise ValueError(f"attach: optimizer=[] holds no optimiser; type {call}, or a list of them")
        self.optimizers = [unwrap_optimizer(wrapped) for wrapped in listed]
        self.updates: list[UpdateScale] = []
        self._given, self._trunk, self._block, self._hooks = encoders, trunk, block, list[Any]()
        self._watched: dict[str, tuple[nn.Module, OutputHook]] = {}
        empty = [name for name, parts in self.encoders.items() if not _tensors(parts, _parameters_of)]
        if empty:
            raise ValueError(
                f"attach: every encoder needs parameters to balance, found none in {', '.join(map(repr, empty))}; "
                "name the module that holds the weights, e.g. encoders={'audio': model.audio_net}"
            )
        kept = self.block_tensors()
        loose = [name for name, own in self.parameters().items() if own and not kept[name]]
        if loose:
            raise ValueError(
                f"attach: encoder {', '.join(map(repr, loose))} has no tensor that this method modulates; choose "
                "parameters='all'"
            )
        parts = self.parts()
        computed = sorted({name for name, own in parts.items() if not all(part.tensor.is_leaf for part in own)})
        if computed:
            raise ValueError(
                f"attach: the fused head's part of {', '.join(map(repr, computed))} is computed from other parameters "
                "(a parametrization), and cannot be scaled; type heads='plain'"
            )
        held = {id(tensor) for optimizer in self.optimizers for tensor in tensors_held(optimizer)}
        loose = {name: [id(part.tensor) in held for part in own].count(False) for name, own in parts.items()}
        if self.optimizers and any(loose.values()):
            counts = (f"{count} of {len(parts[name])} of encoder {name!r}" for name, count in loose.items() if count)
            raise ValueError(
                "attach: expected optimisers that hold every trainable tensor of the encoders; "
                f"{', '.join(counts)} are held by none that was given. Type attach(…, optimizer=[first, second, …]) "
                "with all of them, or requires_grad_(False) for tensors that stay as they are"
            )

    @property
    def encoders(self) -> dict[str, list[nn.Module | Tensor]]:
        """The parts of each encoder, as they are now: a part may have been replaced since."""
        return {name: _parts(self.model, part) for name, part in self._named().items()}

    def parameters(self) -> dict[str, list[Tensor]]:
        """Return the trainable tensors per modality, as they are now."""
        tensors = {name: _tensors(parts, _parameters_of) for name, parts in self.encoders.items()}
        return {name: [tensor for tensor in own if tensor.requires_grad] for name, own in tensors.items()}

    def every_parameter(self, modality: str) -> list[Tensor]:
        """List the parameters of one encoder, frozen ones too, as they are now."""
        return _tensors(self.encoders[modality], _parameters_of)

    def identities(self) -> dict[str, list[int]]:
        """Return which tensors the encoders are made of, by their identity."""
        return {name: [id(tensor) for tensor in self.every_parameter(name)] for name in self.encoders}

    def block_tensors(self) -> dict[str, list[Tensor]]:
        """Return the trainable tensors per modality that its column and factor mean, as they are now."""
        return {name: [t for t in own if self._in_block(t)] for name, own in self.parameters().items()}

    def _in_block(self, tensor: Tensor) -> bool:
        return self._block != "kernels" or tensor.dim() >= 3

    def trunk(self) -> list[Tensor]:
        """Return the trainable tensors of the trunk that belong to no encoder, as they are now; none without one."""
        given = self._trunk
        if given is None and self._given is None:
            given = getattr(self.model, "trunk", None)
        if given is None:
            return []
        owned = {id(tensor) for own in self.parameters().values() for tensor in own}
        tensors = _tensors(_parts(self.model, given), _parameters_of)
        return [tensor for tensor in tensors if tensor.requires_grad and id(tensor) not in owned]

    def everything(self, modality: str) -> list[Tensor]:
        """List every parameter and buffer of one encoder, and its part of the fused head where that goes with it."""
        own = _tensors(self.encoders[modality], lambda module: [*module.parameters(), *module.buffers()])
        return [*own, *(part.of(part.tensor.detach()) for part in self.head_parts().get(modality, []))]

    def parts(self) -> dict[str, list[ParameterPart]]:
        """Return the trainable tensors per modality as they are now, with its part of the fused head."""
        own = {name: [ParameterPart(tensor) for tensor in tensors] for name, tensors in self.parameters().items()}
        named = {id(part.tensor) for parts in own.values() for part in parts}
        for name, parts in self.head_parts().items():
            loose = [part for part in parts if id(part.tensor) not in named and part.tensor.requires_grad]
            own.setdefault(name, []).extend(loose)
        return own

    def head_parts(self) -> dict[str, list[ParameterPart]]:
        """Return each modality's own part of the fused head, where it goes with the encoder and the model tells."""
        tells = getattr(self.model, "fused_head_parts", None) if self._block == "with head" else None
        return (
            {name: [ParameterPart(*part) for part in parts] for name, parts in tells().items()}
            if tells is not None
            else {}
        )

    def output_layers(self) -> dict[str, tuple[Tensor, ParameterPart]]:
        """Return of each modality the weight of its own output layer, and its part of the fused one, of equal shape.

        Empty where the model does not tell.
        """
        tells = getattr(self.model, "output_layers", None)
        return {name: (own, ParameterPart(*part)) for name, (own, part) in tells().items()} if tells is not None else {}

    def follow(self, method: Any, at: str) -> None:
        """Watch the optimisers where gradients alone do not decide what happens to an encoder.

        Args:
            method: The balancer, which is told of steps.
            at: Where it takes the gradients that decide: "parameters" or "features".

        Raises:
            ValueError: If the method decides at features and an encoder is not one module, and so has no output.
        """
        needs = method.needs
        if at == "features":
            self._watch_outputs(type(method).__name__)
        if not self.optimizers and needs.warning:
            warnings.warn(needs.warning, UserWarning, stacklevel=3)
        for place, optimizer in enumerate(self.optimizers):
            # Steps are counted by the first; what has to be put back is put back after each.
            told = partial(_tell, method, counts=place == 0)
            self._hooks.append(optimizer.register_step_post_hook(told))
            if needs.factors and not moves_with_the_gradient(optimizer):
                self.updates.append(UpdateScale(optimizer, self._scaled))
        self._hooks += self.updates

    def release(self) -> None:
        """Remove every hook from the model and its optimisers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.updates = [], []

    def _scaled(self) -> dict[str, list[ParameterPart]]:
        """Return the parameters per modality that its factor acts on, as they are now."""
        return {name: [part for part in own if self._in_block(part.tensor)] for name, own in self.parts().items()}

    def _watch_outputs(self, method: str) -> None:
        single = {name: parts[0] for name, parts in self.encoders.items() if len(parts) == 1}
        modules = {name: part for name, part in single.items() if isinstance(part, nn.Module)}
        self._watched = {name: (module, OutputHook()) for name, module in modules.items()}
        loose = ", ".join(repr(name) for name in self.encoders if name not in self._watched)
        if loose:
            raise ValueError(
                f"attach: {method}(at='features') reads what each encoder gives, and expected one module for each; "
                f"found bare parameters or several parts for {loose}. Type encoders={{'audio': model.audio_net, …}} "
                f"with the module whose output is the feature, or {method}(at='parameters')"
            )
        self._hooks += [module.register_forward_hook(hook) for module, hook in self._watched.values()]
        for handle in self._hooks:  # also where it is not detached: a hook that nothing reads would hold on to a graph
            weakref.finalize(self, handle.remove).atexit = False

    def output_hooks(self) -> dict[str, OutputHook | None]:
        """Return the hooks that remember outputs by modality; None where an encoder has been replaced since."""
        now = self.encoders
        return {name: hook if now.get(name) == [module] else None for name, (module, hook) in self._watched.items()}

    def compiled(self) -> bool:
        """Return True if any part of what was attached has been through torch.compile."""
        whole = [*self.layers, *(part for parts in self.encoders.values() for part in parts)]
        modules = (part for top in whole if isinstance(top, nn.Module) for part in top.modules())
        return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in modules)

    def _named(self) -> Encoders:
        if self._given is not None and not self._given:
            raise ValueError("attach: encoders={} names no modality; expected one entry per modality")
        if self._given is not None:
            return self._given
        own = getattr(self.model, "encoders", None)
        if isinstance(own, (Mapping, nn.ModuleDict)) and len(own):
            return dict(own.items())
        children = [name for name, _ in self.model.named_children()] if self.model is not None else []
        raise ValueError(
            "attach: expected to be told which parts of the model are encoders; "
            f"the model ({type(self.model).__name__}) has no mapping `encoders`. "
            f"Its parts are {children}: type attach(model, encoders={{'audio': model.…, 'video': model.…}})"
        )


def _tell(method: Any, optimizer: Optimizer, *_: object, counts: bool) -> None:
    method.stepped(was_taken(optimizer), counts=counts)


def _parts(model: nn.Module | None, encoder: Encoder) -> list[nn.Module | Tensor]:
    listed = [encoder] if isinstance(encoder, (nn.Module, str, Tensor)) else list(encoder)
    wrong = next((part for part in listed if not isinstance(part, (nn.Module, str, Tensor))), None)
    if wrong is not None:
        kind = type(wrong).__name__
        raise TypeError(f"attach: an encoder is a module, a dotted name or a list of these, found {kind}")
    return [_submodule(model, part) if isinstance(part, str) else part for part in listed]


def _submodule(model: nn.Module | None, name: str) -> nn.Module:
    if model is None:
        raise ValueError(f"attach: encoder {name!r} is a name, so the model is needed too: attach(model, encoders=…)")
    names = dict(model.named_modules(remove_duplicate=False))
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its parts are {[n for n, _ in model.named_children()]}"
    raise ValueError(f"attach: {type(model).__name__} has no part called {name!r}; {hint}")


def _parameters_of(module: nn.Module) -> Iterable[Tensor]:
    """Yield what `module.parameters()` does, without making a name for each: this runs in every step."""
    waiting = [module]
    while waiting:
        current = waiting.pop()
        yield from (tensor for tensor in current._parameters.values() if tensor is not None)
        waiting.extend(child for child in reversed(current._modules.values()) if child is not None)


def _tensors(parts: Iterable[nn.Module | Tensor], of: Callable[[nn.Module], Iterable[Tensor]]) -> list[Tensor]:
    every = (tensor for part in parts for tensor in ([part] if isinstance(part, Tensor) else of(part)))
    return list({id(tensor): tensor for tensor in every}.values())
