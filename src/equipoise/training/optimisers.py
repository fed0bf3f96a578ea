"""Optimisers, learning-rate schedules, rates by depth, and the safe learning rate of the paper's Proposition 1.

The safe rate is 1/L̂, with the constants of where a model stands: L̂ = L_mm + λ Σ_k (L_k + G_k²/μ) for MIMO. No network
has such constants everywhere, so they are local ones, on one fixed batch: the spectral norms of Hessians by power
iteration on Hessian-vector products, and the norms of gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer, lr_scheduler

from equipoise.balance.attach import Attachment, Encoder
from equipoise.balance.balancer import Balancer
from equipoise.models.fusion_model import FusionModel
from equipoise.training.safe_step import smoothness_of, smoothness_problem
from equipoise.util.errors import BadInput, demand

if TYPE_CHECKING:  # the root package imports `layerwise`, and should load neither data sets nor settings
    from equipoise.data.splits import Part
    from equipoise.training.settings import Settings

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
PER_STEP = ("warmup-cosine",)
"""Schedules that are moved after every step."""
WARM_UP = 0.05
"""The share of the steps over which the learning rate grows."""
ROUNDS = 20  # of power iteration
HALVINGS = 20
MARGIN = 1.05  # power iteration comes from below
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "layer_decay": 1.0}  # what the theorem is about
_LISTS = (nn.Sequential, nn.ModuleList)


def make_optimizer(model: nn.Module, settings: Settings, *, captured: bool = False) -> Optimizer:
    """Make the optimiser by name.

    Args:
        model: Whose parameters it moves.
        settings: Of the run.
        captured: Whether its steps may be captured: all of them in few kernels, and the learning rate in a tensor.
    """
    first = next(model.parameters())
    rate = torch.tensor(settings.lr, device=first.device) if captured else settings.lr
    moved = model.parameters() if settings.layer_decay == 1 else layerwise(model, rate, settings.layer_decay)
    whole = settings.parallel == "ddp"  # the fused ones do not know shards
    fused = True if captured or (whole and first.device.type == "cpu") else None
    kind = OPTIMIZERS[settings.optimizer]
    own = {"momentum": settings.momentum} if kind is torch.optim.SGD else {"capturable": captured}
    return kind(moved, rate, weight_decay=settings.weight_decay, fused=fused, **own)


def make_schedule(optimizer: Optimizer, settings: Settings, steps: int = 1) -> Any:
    """Make the learning-rate schedule by name; None where it is constant.

    Args:
        optimizer: Whose learning rates it moves.
        settings: Of the run.
        steps: Of an epoch, for `PER_STEP`, which are moved after every step; all others after every epoch.
    """
    if settings.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, max(settings.passes, 1))
    if settings.schedule == "step":
        return lr_scheduler.MultiStepLR(optimizer, [max(1, round(0.7 * settings.passes))], 0.1)
    if settings.schedule == "warmup-cosine":
        return lr_scheduler.LambdaLR(optimizer, partial(warmup_cosine, steps=settings.passes * steps))
    return None


def warmup_cosine(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step, counted from 0.

    It grows by equal amounts to 1 over the first 5 % of the steps, then falls to 0 by half a cosine, which it would
    reach after the last step.

    Example:
        >>> [round(warmup_cosine(step, 40), 3) for step in (0, 1, 20, 39)]
        [0.5, 1.0, 0.52, 0.002]
    """
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm + 1) / (steps - warm + 1)))


def layerwise(
    model: nn.Module, lr: float | Tensor, decay: float = 0.8, *, encoders: Mapping[str, Encoder] | None = None
) -> list[dict[str, Any]]:
    """Group parameters for an optimiser: heads learn at ``lr``, each layer of an encoder more slowly than the next.

    The n-th layer from an encoder's top learns at lr · decayⁿ, its last one at lr · decay. Layers are modules of one
    kind in a list, such as the blocks of a transformer or a ResNet, and what comes before and after such lists; a norm
    belongs to the layer before it. Biases, norms and single tokens are not subject to weight decay.

    Args:
        model: The model, bare or wrapped.
        lr: Learning rate of everything that is in no encoder.
        decay: By how much a layer is slower than the one above it; 1 means not at all.
        encoders: As for `Balancer.attach`; a model with a mapping ``encoders``, such as LateFusion, needs no telling.

    Returns:
        One group per rate, slowest first; ``torch.optim.AdamW(layerwise(model, 1e-4), weight_decay=0.05)``.

    Example:
        >>> from equipoise import LateFusion
        >>> encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        >>> model = LateFusion({"audio": encoder}, classes=2)
        >>> [(group["lr"], len(group["params"])) for group in layerwise(model, 1.0, 0.5) if "weight_decay" not in group]
        [(0.25, 1), (0.5, 1), (1.0, 2)]
    """
    demand("layerwise", (0 < decay <= 1, "decay should be above zero and at most 1", decay))
    attachment = Attachment(model, encoders, None)
    depths: dict[int, int] = {}  # of each parameter of an encoder; a shared one is as deep as where it is least deep
    for parts in attachment.encoders.values():
        layers = _joined([layer for part in parts for layer in _layers(part)])
        for number, tensors in enumerate(layers):
            for tensor in tensors:
                depths[id(tensor)] = min(depths.get(id(tensor), len(layers)), len(layers) - number)
    groups: dict[tuple[int, bool], list[Tensor]] = {}
    for tensor in (attachment.model or model).parameters():
        groups.setdefault((depths.get(id(tensor), 0), not _is_matrix(tensor)), []).append(tensor)
    return [
        {"params": groups[depth, vector], "lr": lr * decay**depth} | ({"weight_decay": 0.0} if vector else {})
        for depth, vector in sorted(groups, key=lambda key: (-key[0], key[1]))
    ]


def _layers(part: nn.Module | Tensor, *, listed: bool = False) -> Iterator[list[Tensor]]:
    """Yield the parameters of an encoder in layers, from the bottom up.

    Args:
        part: The encoder, or a part of it.
        listed: Whether it stands in a list of unlike parts. Then it is one layer, unless it has a stack of layers
            inside.
    """
    if isinstance(part, Tensor):
        yield [part]
    elif _is_stack(part):
        yield from (list(child.parameters()) for child in part.children())
    elif any(_is_stack(inner) if listed else isinstance(inner, _LISTS) for inner in part.modules()):
        own = list(part.parameters(recurse=False))  # such as positions, which go with what comes first
        for child in part.children():
            for layer in _layers(child, listed=listed or isinstance(part, _LISTS)):
                yield own + layer
                own = []
    else:
        yield list(part.parameters())


def _is_stack(module: nn.Module) -> bool:
    """Return whether a module is a list of several layers of one kind."""
    kinds = [type(child) for child in module.children() if next(child.parameters(), None) is not None]
    return isinstance(module, _LISTS) and len(kinds) > 1 and len(set(kinds)) == 1


def _joined(layers: list[list[Tensor]]) -> list[list[Tensor]]:
    """Join layers without a matrix, such as norms, to the one before; those before all others, to the first."""
    joined: list[list[Tensor]] = []
    early: list[Tensor] = []
    for tensors in layers:
        if any(_is_matrix(tensor) for tensor in tensors):
            joined.append([*early, *tensors])
            early = []
        elif joined:
            joined[-1] += tensors
        else:
            early += tensors
    return joined or [early]


def _is_matrix(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix or a kernel: tokens and positions are stored with leading ones."""
    return sum(size > 1 for size in tensor.shape) > 1


def words_for(step: str) -> list[str]:
    """Return the settings that a step rule needs, as words; words of the user come later, and win.

    Example:
        >>> words_for("safe")
        ['step=safe', 'optimizer=sgd', 'momentum=0', 'schedule=constant', 'layer_decay=1']
    """
    return [] if step == "given" else [f"step={step}", *_typed(PLAIN)]


def check_step(settings: Settings, balancer: Balancer) -> None:
    """Raise one `BadInput` with everything that keeps a run from a safe step; nothing where none was asked for."""
    if settings.step == "given":
        return
    other = {name: getattr(settings, name) for name in PLAIN if getattr(settings, name) != PLAIN[name]}
    problems = [why for why in [smoothness_problem(balancer)] if why]
    if other:
        wanted = " ".join(_typed({name: PLAIN[name] for name in other}))
        problems.append(f"it is a step of plain gradient descent; found {' '.join(_typed(other))}, type {wanted}")
    if problems:
        raise BadInput(f"step={settings.step}: " + "; ".join(problems))


def _typed(settings: Mapping[str, object]) -> list[str]:
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()]


def set_safe_rate(model: FusionModel, balancer: Balancer, part: Part, optimizer: Optimizer, settings: Settings) -> None:
    """Set the learning rate of an optimiser to `safe_rate` on some samples, where there is one."""
    check_step(settings, balancer)
    rate = safe_rate(model, balancer, part, settings.weight_decay)
    for group in optimizer.param_groups if rate is not None else ():
        # A captured step reads it from its tensor.
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate


def safe_rate(model: FusionModel, balancer: Balancer, part: Part, weight_decay: float = 0.0) -> float | None:
    """Return 1/L̂ where the model stands, halved until a step on these samples does not raise the objective.

    Constants of a point need not hold along a step, and ReLUs have kinks; halving has to make up for that rarely.

    Args:
        model: Untouched.
        balancer: Untouched.
        part: The samples, as encoders read them.
        weight_decay: Bends the objective by as much.

    Returns:
        The rate; None where the loss is flat or not finite, and any rate is as good as another.
    """
    from equipoise.training.step import losses_of

    bend = local_smoothness(model, balancer, part) + weight_decay
    if not 0 < bend < math.inf:
        return None
    rate = 1.0 / bend
    twin, rule = copy.deepcopy((model, balancer))
    _use_batch_statistics(twin)
    rule.eval().attach(twin)
    loss, _ = losses_of(twin, rule, part)
    loss.backward()
    start = [(one, one.detach().clone(), one.grad) for one in twin.parameters() if one.grad is not None]
    with torch.no_grad():
        before = loss + _decay(start, weight_decay)
        for _ in range(HALVINGS):
            for parameter, origin, gradient in start:
                parameter.copy_(origin - rate * (gradient + weight_decay * origin))
            if losses_of(twin, rule, part)[0] + _decay(start, weight_decay) <= before:
                break
            rate /= 2
    return rate


def _decay(start: list[tuple[nn.Parameter, Tensor, Tensor]], weight_decay: float) -> Tensor:
    return weight_decay / 2 * torch.stack([parameter.square().sum() for parameter, _, _ in start]).sum()


def _use_batch_statistics(model: nn.Module) -> None:
    """Set evaluation mode, but for batch norm: it takes the statistics of its batch, as in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()


def local_smoothness(model: FusionModel, balancer: Balancer, part: Part, rounds: int = ROUNDS) -> float:
    """Return L̂ of a method's objective where the model stands, on some samples.

    Dropout is off. Batch norm takes the statistics of these samples, as a step of training does: at the start its
    running ones fit nothing yet, and gave a constant nine times too small in a trial.

    Args:
        model: Untouched; what is differentiated twice is an uncompiled copy.
        balancer: A method whose objective is smooth.
        part: The samples, as encoders read them.
        rounds: Hessian-vector products per loss.
    """
    twin = copy.deepcopy(model)
    _use_batch_statistics(twin)

    def of_loss(name: str, *, head_alone: bool = False) -> tuple[float, float]:
        heads: Any = getattr(twin, "heads", {})  # the settings allow only models that have some
        return constants(twin, part, name, (heads[name] if head_alone else twin).parameters(), rounds)

    # Recurrent layers of cuDNN and the fast kernels of attention have one backward pass only.
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        return smoothness_of(balancer, of_loss, list(twin.encoders))


def constants(
    model: FusionModel, part: Part, name: str, parameters: Iterable[nn.Parameter], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return the largest size of an eigenvalue of a loss's Hessian, with a margin, and the norm of its gradient.

    Args:
        model: In the mode it is to be judged in.
        part: The samples.
        name: Of the output: "fused" or a modality.
        parameters: Those that the loss is a function of.
        rounds: Of power iteration.
    """
    variables = [parameter for parameter in parameters if parameter.requires_grad]
    loss = model.known_task().loss(model(part.inputs)[name], part.label).mean()
    slope = torch.autograd.grad(loss, variables, create_graph=True, materialize_grads=True)
    random = torch.Generator().manual_seed(0)
    direction = [torch.randn(one.shape, generator=random).to(one) for one in variables]
    size = _norm(direction)
    for _ in range(rounds):
        direction = [one / size.clamp(min=torch.finfo(size.dtype).tiny) for one in direction]
        direction = list(torch.autograd.grad(slope, variables, direction, retain_graph=True, materialize_grads=True))
        size = _norm(direction)
    return MARGIN * float(size), float(_norm(slope).detach())


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(torch._foreach_norm(list(tensors)))).norm()
