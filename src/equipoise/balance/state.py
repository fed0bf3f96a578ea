"""State with one row per modality: saved, moved and loaded like any buffer, and tied to names, not to positions."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_EXTRA = "_extra_state"


class PerModality(nn.Module, ABC):
    """A module whose buffers hold one row per modality.

    The modalities are learnt at the first call or from a saved state. A state saved under another order of modalities
    is put into this one's order when loaded.
    """

    modalities: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.modalities = ()
        self._rows: dict[str, Tensor | dict[str, Tensor]] = {}  # what a row starts as: alike for all, or by modality

    def remember(self, name: str, shape: tuple[int, ...] = (), fill: float = 0.0) -> None:
        """Declare a state: a float buffer of shape [K, *shape], filled with ``fill`` until something is learnt."""
        self._rows[name] = torch.full(shape, fill)
        self.register_buffer(name, torch.full((0, *shape), fill))

    def given(self, name: str, rows: Mapping[str, float | Tensor]) -> None:
        """Declare a state whose rows a user gave by modality."""
        self._rows[name] = {m: torch.as_tensor(row, dtype=torch.float64) for m, row in rows.items()}
        self.register_buffer(name, torch.zeros(0))

    def settle(self, modalities: Sequence[str], device: torch.device) -> None:
        """Fix the modalities, once, and follow the losses to their device."""
        if not self.modalities and modalities:
            for name, rows in self._rows.items():
                tensor = torch.stack([_row(name, rows, modality, modalities) for modality in modalities])
                # Numbers that a user gave keep double precision, where the device has it.
                setattr(self, name, tensor.to(device, torch.float32 if device.type == "mps" else tensor.dtype))
            self.modalities = tuple(modalities)
        if any(buffer.device != device for buffer in self.buffers()):
            self.to(device)

    def get_extra_state(self) -> dict[str, Any]:
        """What the buffers do not say: which row is whose."""
        return {"modalities": list(self.modalities), "host": self.host_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Counterpart of ``get_extra_state``; the modalities were taken over before the buffers were."""
        self.load_host_state(state["host"])

    def host_state(self) -> dict[str, Any]:
        """Plain numbers a method keeps outside its buffers."""
        return {}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Counterpart of ``host_state``."""

    def _load_from_state_dict(  # ty: ignore[incompatible-method-override]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        saved = state_dict.get(prefix + _EXTRA, {}).get("modalities", [])
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


def _row(name: str, rows: Tensor | dict[str, Tensor], modality: str, modalities: Sequence[str]) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    if set(rows) != set(modalities):
        msg = f"{name}: expected one entry for each of {list(modalities)}, found {list(rows)}"
        raise ValueError(msg)
    return rows[modality]
