"""A method's state: tensors alone, with one row per modality, or a copy of each encoder."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from typing_extensions import Self

from equipoise.util.errors import demand

Copied: TypeAlias = Literal["parameters", "everything"]
"""The parameters of an encoder, or all of its block: buffers too, and its part of the fused head."""
_NAMES = "modality_names"  # the names as bytes, in the order of the rows


class State(nn.Module, ABC):
    """A module whose buffers are saved, moved and loaded by the names of modalities, not by their position.

    The modalities are learnt at the first call or from a saved state. A state saved under another order of modalities
    is put into this one's order when loaded. All that is saved is tensors.
    """

    modalities: tuple[str, ...]
    epoch: Tensor
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, for `repr`; say what a method lacks that answers nothing."""
        if lacking := sorted(cls.__abstractmethods__):
            raise TypeError(f"{cls.__name__}: expected a method {', '.join(map(repr, lacking))}; see its base class")
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
        self._copies: dict[str, Copied] = {}
        self._copied_first: list[str] = []
        self._seeds: dict[str, int] = {}
        self._generators: dict[str, torch.Generator] = {}  # made where they are first used
        self._generator_states: dict[str, Tensor] = {}  # that were loaded, for generators that are not made yet
        self._host: dict[str, tuple[float, ...]] = {}
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.register_buffer(_NAMES, torch.zeros(0, dtype=torch.uint8))

    def extra_repr(self) -> str:
        """List the arguments that the balancer was made with."""
        return ", ".join(f"{name}={value!r}" for name, value in self._arguments.items() if value is not None)

    def check_arguments(self, *rules: tuple[bool, str, object]) -> None:
        """Raise one message for every rule that does not hold, and every argument that is not one of its choices.

        Args:
            rules: Whether the rule holds, what was expected in words, and what was found. Choices need no rule: they
                are the literals in the signature.
        """
        choices = []
        try:
            hints = get_type_hints(type(self).__init__)
        except NameError:  # annotations that are imported for type checkers alone
            hints = {}
        for name, kind in hints.items():
            kinds = [kind, *get_args(kind)]
            known = [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]
            known += [None] if type(None) in kinds and known else []
            if known:
                expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
                choices.append((self._arguments[name] in known, f"{name} should be {expected}", self._arguments[name]))
        demand(type(self).__name__, *rules, *choices)

    # -- what a method declares --

    def add_state(self, name: str, shape: tuple[int, ...] = (), fill: float = 0.0) -> None:
        """Declare a state: a float buffer of shape [K, *shape], filled with ``fill`` until something is learnt."""
        self._rows[name] = torch.full(shape, fill)
        self.register_buffer(name, torch.full((0, *shape), fill))

    def add_given_state(self, name: str, rows: Mapping[str, float | Tensor]) -> None:
        """Declare a state whose rows a user gave by modality."""
        self._rows[name] = {m: torch.as_tensor(row, dtype=torch.float64) for m, row in rows.items()}
        self.register_buffer(name, torch.zeros(0))

    def add_copy(self, name: str, of: Copied, *, at_first: bool = False) -> None:
        """Declare a copy of each encoder: buffers that a saved state brings along.

        Args:
            name: Of the copy.
            of: What it holds.
            at_first: Take it before the first step; else `copy_encoder` does.
        """
        self._copies[name] = of
        self._copied_first += [name] if at_first else []

    def add_generator(self, name: str, seed: int) -> None:
        """Declare a generator of random numbers, whose state is saved."""
        self._seeds[name] = seed

    # -- what a method uses --

    @abstractmethod
    def tensors_of(self, modality: str, of: Copied) -> list[Tensor]:
        """List the tensors of an encoder; nothing until a model is attached."""

    def copied(self, name: str, modality: str) -> list[Tensor]:
        """Return the tensors of a copy; none where it was not taken yet."""
        own = f"{name}%{modality}"
        return [one for key, one in self._buffers.items() if one is not None and key.rpartition("%")[0] == own]

    @torch.no_grad()
    def copy_encoder(self, name: str, modality: str) -> None:
        """Take a copy of an encoder as it is now, in place where there is one."""
        tensors, kept = self.tensors_of(modality, self._copies[name]), self.copied(name, modality)
        if [(one.shape, one.device) for one in kept] == [(one.shape, one.device) for one in tensors]:
            for one, tensor in zip(kept, tensors, strict=True):
                one.copy_(tensor)
            return
        self._forget(name, modality)
        for place, tensor in enumerate(tensors):
            self.register_buffer(f"{name}%{modality}%{place}", tensor.detach().clone())

    def copy_first(self) -> None:
        """Take the copies that are taken before the first step, once."""
        for name in self._copied_first:
            for modality in self.modalities:
                if not self.copied(name, modality):
                    self.copy_encoder(name, modality)

    def fit(self, name: str) -> bool:
        """Return True if the copies that were taken have the shapes of the encoders as they are now."""
        pairs = ((self.copied(name, m), self.tensors_of(m, self._copies[name])) for m in self.modalities)
        return all([one.shape for one in kept] in ([], [one.shape for one in now]) for kept, now in pairs)

    def forget_copies(self, names: Collection[str]) -> None:
        """Drop some copies: those that another model began with are of no use."""
        for name in names:
            for modality in self.modalities:
                self._forget(name, modality)

    def generator(self, name: str, device: torch.device) -> torch.Generator:
        """Return the one generator of a name, which a resumed run and every rank start alike."""
        known = self._generators.get(name)
        if known is None or known.device != device:
            known = self._generators[name] = torch.Generator(device).manual_seed(self._seeds[name])
            state = self._generator_states.get(name)
            if state is not None and state.shape == known.get_state().shape:  # of the same kind of device
                known.set_state(state.cpu())
        return known

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that are in use."""
        return list(self._generators.values())

    def on_host(self, name: str) -> tuple[float, ...]:
        """Return a state as plain numbers, to decide by what a step does. Waits for the device after each epoch."""
        if name not in self._host:
            self._host[name] = tuple(self.get_buffer(name).tolist())
        return self._host[name]

    def host_values(self) -> dict[str, tuple[float, ...]]:
        """Return all that `on_host` was asked for: a recorded step holds for as long as these stay the same."""
        return {name: self.on_host(name) for name in self._host}

    def refresh_host(self) -> None:
        """Read what is on the host anew: the state has changed."""
        self._host = {name: tuple(self.get_buffer(name).tolist()) for name in self._host}

    # -- rows by modality --

    def row_problems(self, modalities: Collection[str]) -> list[str]:
        """Return where numbers that a user gave by modality are not those of these modalities."""
        given = {name: rows for name, rows in self._rows.items() if isinstance(rows, dict)}
        return [
            f"{type(self).__name__}: {name} should have one entry for each of {list(modalities)}, found {list(rows)}"
            for name, rows in given.items()
            if set(rows) != set(modalities)
        ]

    def settle(self, modalities: Sequence[str], device: torch.device) -> None:
        """Fix the modalities, once, and follow the losses to their device."""
        if not self.modalities and modalities:
            if problems := self.row_problems(modalities):
                raise ValueError("; ".join(problems))
            for name, rows in self._rows.items():
                tensor = torch.stack([rows[owner] if isinstance(rows, dict) else rows for owner in modalities])
                # Numbers that a user gave keep double precision, where the device has it.
                setattr(self, name, tensor.to(device, torch.float32 if device.type == "mps" else tensor.dtype))
            self.modalities = tuple(modalities)
            setattr(self, _NAMES, torch.tensor(list("\n".join(modalities).encode()), dtype=torch.uint8, device=device))
        if any(buffer.device != device for buffer in self.buffers()):
            self.to(device)
        self.refresh_host()

    # -- saving --

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._seeds:
            made = self._generators.get(name)
            state = self._generator_states.get(name) if made is None else made.get_state()
            destination[prefix + name] = torch.zeros(0, dtype=torch.uint8) if state is None else state

    def _load_from_state_dict(  # ty: ignore[incompatible-method-override]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        own = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        if not own:  # nothing of this balancer was saved
            super()._load_from_state_dict(state_dict, prefix, *rest)
            return
        names = own.get(_NAMES, torch.zeros(0))
        saved = bytes(names.tolist()).decode().split("\n") if len(names) else []
        if saved and not self.modalities:
            self.settle(saved, self.epoch.device)
        if saved and set(saved) != set(self.modalities):
            errors: list[str] = rest[-1]
            errors.append(f"saved for modalities {saved}, but this balancer serves {list(self.modalities)}")
            return
        self._generators = {}
        self._generator_states = {name: own.pop(name) for name in self._seeds if len(own.get(name, ()))}
        self.forget_copies(self._copies)
        for key, value in own.items():
            if key.partition("%")[0] in self._copies:
                self.register_buffer(key, torch.empty_like(value, device=self.epoch.device))
        order = [saved.index(name) for name in self.modalities] if saved else []
        loaded = {prefix + key: value[order] if key in self._rows and saved else value for key, value in own.items()}
        # Rows of a state that knew no modalities stay as they are here, and so does the order of the names.
        kept = (_NAMES,) if saved else (_NAMES, *self._rows)
        loaded |= {prefix + key: self.get_buffer(key) for key in kept if self.modalities}
        super()._load_from_state_dict(
            {k: v for k, v in loaded.items() if k[len(prefix) :] not in self._seeds}, prefix, *rest
        )
        self.refresh_host()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move with a model, but do not follow it into half precision: running means would stand still there."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)

    def _forget(self, name: str, modality: str) -> None:
        for key in [key for key in self._buffers if key.rpartition("%")[0] == f"{name}%{modality}"]:
            del self._buffers[key]

    def __getstate__(self) -> dict[str, Any]:
        """Generators cannot be copied everywhere; their states can."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {**self.__dict__, "_generators": {}, "_generator_states": {**self._generator_states, **states}}
