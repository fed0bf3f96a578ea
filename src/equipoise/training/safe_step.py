"""The step that Proposition 1 calls safe: a learning rate of 1/L̂, with the constants of where a model stands.

L̂ = L_mm + λ Σ_k (L_k + G_k²/μ) for MIMO. No network has such constants everywhere, so they are local ones, on one fixed
batch: the spectral norms of Hessians by power iteration on Hessian-vector products, and the norms of gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from equipoise.balance.balancer import Balancer
from equipoise.balance.theory import smoothness
from equipoise.data.feed import Feed
from equipoise.data.splits import Part
from equipoise.methods import EW, MIMO, MSL
from equipoise.models.late_fusion import LateFusion
from equipoise.training.settings import Settings
from equipoise.training.step import losses_of
from equipoise.util.errors import BadInput

ROUNDS = 20
HALVINGS = 20
MARGIN = 1.05  # power iteration comes from below


PLAIN = {"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "layer_decay": 1.0}  # what the theorem is about


def words_for(step: str) -> list[str]:
    """The settings that a way to set the step needs, as words; words of the user's come later, and win.

    Example:
        >>> words_for("safe")
        ['step=safe', 'optimizer=sgd', 'momentum=0', 'schedule=constant', 'layer_decay=1']
    """
    return [] if step == "given" else [f"step={step}", *_typed(PLAIN)]


def check_step(settings: Settings, balancer: Balancer) -> None:
    """Raise one `BadInput` with everything that keeps a run from a safe step; nothing where none was asked for."""
    if settings.step == "given":
        return
    found = {name: getattr(settings, name) for name in PLAIN if getattr(settings, name) != PLAIN[name]}
    problems = [why for why in [_no_theorem(balancer)] if why]
    if found:
        wanted = " ".join(_typed({name: PLAIN[name] for name in found}))
        problems.append(f"it is a step of plain gradient descent; found {' '.join(_typed(found))}, type {wanted}")
    if problems:
        raise BadInput(f"step={settings.step}: " + "; ".join(problems))


def _typed(settings: Mapping[str, object]) -> list[str]:
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()]


def _no_theorem(balancer: Balancer) -> str:
    name = type(balancer).__name__
    if isinstance(balancer, MIMO):
        if balancer.smoothing == 0:
            return "the objective is smooth for μ > 0 only, found smoothing=0; type mimo.smoothing=0.1"
        if balancer.heads == "plain":
            return "plain heads do not follow the objective's gradient; type mimo.heads=scaled"
        return ""
    if isinstance(balancer, (MSL, EW)):
        return ""
    return f"{name} follows no gradient of a smooth objective, so no step is known to be safe; choose msl, ew or mimo"


def before_epoch(
    settings: Settings, epoch: int, batch: int, model: LateFusion, balancer: Balancer, feed: Feed, optimizer: Optimizer
) -> None:
    """Set the learning rate to 1/L̂ where the settings ask for it; a run that goes on keeps the one it had.

    Args:
        settings: Of the run.
        epoch: How many are done.
        batch: How many batches of this epoch are done.
        model: Where it stands.
        balancer: The method.
        feed: The training part; as many samples as a batch has are taken from it, evenly spaced.
        optimizer: Whose learning rate is set.
    """
    if settings.step == "given" or batch > 0 or (settings.step == "safe" and epoch > 0):
        return
    check_step(settings, balancer)
    count = min(settings.batch, len(feed))
    rows = torch.linspace(0, len(feed) - 1, count).long()
    part = feed.made(next(iter(feed.batches([rows]))), at_random=False)
    rate = safe_rate(model, balancer, part, settings.weight_decay)
    if rate is None:
        return
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # a recorded step reads it there
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def learning_rate(settings: Settings, optimizer: Optimizer) -> dict[str, str]:
    """What the last safe step was, for the row of a run; nothing where none was asked for."""
    if settings.step == "given":
        return {}
    return {
        "learning rate": f"{float(optimizer.param_groups[0]['lr']):.4g}, at most 1/L̂ of a batch of {settings.batch}"
    }


def safe_rate(model: LateFusion, balancer: Balancer, part: Part, weight_decay: float = 0.0) -> float | None:
    """1/L̂ where the model stands, halved until a step on these samples does not raise the objective.

    Constants of a point need not hold along a step, and ReLUs have kinks; halving has to make up for that rarely.

    Args:
        model: Untouched.
        balancer: Untouched.
        part: The samples, as encoders read them.
        weight_decay: Bends the objective by as much.

    Returns:
        The rate; None where the loss is flat or not finite, and any rate is as good as another.
    """
    bend = local_smoothness(model, balancer, part) + weight_decay
    if not 0 < bend < math.inf:
        return None
    rate = 1.0 / bend
    twin, rule = copy.deepcopy((model, balancer))
    _seeing_batches(twin)
    rule.eval().attach(twin)
    loss, _ = losses_of(twin, rule, part)
    loss.backward()
    start = [(each, each.detach().clone(), each.grad) for each in twin.parameters() if each.grad is not None]
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


def _seeing_batches(model: nn.Module) -> None:
    """Evaluation mode, but for batch norm: it takes the statistics of what it sees, as in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()


def local_smoothness(model: LateFusion, balancer: Balancer, part: Part, rounds: int = ROUNDS) -> float:
    """L̂ of a method's objective where the model stands, on some samples.

    Dropout is off. Batch norm takes the statistics of these samples, as a step of training does: at the start its
    running ones fit nothing yet, and gave a constant nine times too small in a trial. The heads that joint training
    fits beside the model, on features that carry no gradient, count as well: the largest constant does.

    Args:
        model: Untouched; what is differentiated twice is an uncompiled copy.
        balancer: MSL, EW, or MIMO with a smooth maximum.
        part: The samples, as encoders read them.
        rounds: Hessian-vector products per loss.
    """
    twin = copy.deepcopy(model)
    _seeing_batches(twin)
    with _twice_differentiable():
        fused, _ = constants(twin, part, "fused", twin.parameters(), rounds)
        if isinstance(balancer, MSL):
            beside = [constants(twin, part, name, head.parameters(), rounds)[0] for name, head in twin.heads.items()]
            return max([fused, *beside])
        unimodal = [constants(twin, part, name, twin.parameters(), rounds) for name in twin.encoders]
    bends = sum(bend for bend, _ in unimodal)
    if isinstance(balancer, EW):
        return fused + balancer.weight * bends
    assert isinstance(balancer, MIMO)
    return smoothness(fused, unimodal, balancer.penalty, balancer.smoothing) + balancer.floor * bends


def constants(
    model: LateFusion, part: Part, name: str, parameters: Iterable[nn.Parameter], rounds: int = ROUNDS
) -> tuple[float, float]:
    """The largest size of an eigenvalue of a loss's Hessian, with a margin, and the norm of its gradient.

    Args:
        model: In the mode it is to be judged in.
        part: The samples.
        name: Of the output: "fused" or a modality.
        parameters: Those that the loss is a function of.
        rounds: Of power iteration.
    """
    variables = [each for each in parameters if each.requires_grad]
    loss = F.cross_entropy(model(part.inputs)[name], part.label)
    slope = torch.autograd.grad(loss, variables, create_graph=True, materialize_grads=True)
    random = torch.Generator().manual_seed(0)
    direction = [torch.randn(each.shape, generator=random).to(each) for each in variables]
    size = _norm(direction)
    for _ in range(rounds):
        direction = [each / size.clamp(min=torch.finfo(size.dtype).tiny) for each in direction]
        direction = list(torch.autograd.grad(slope, variables, direction, retain_graph=True, materialize_grads=True))
        size = _norm(direction)
    return MARGIN * float(size), float(_norm(slope).detach())


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(torch._foreach_norm(list(tensors)))).norm()


@contextmanager
def _twice_differentiable() -> Generator[None]:
    """Recurrent layers of cuDNN and the fast kernels of attention know one backward pass only."""
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield
