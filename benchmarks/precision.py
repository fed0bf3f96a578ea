"""How far half precision moves the gradient of each method: fp16 with a GradScaler, and bf16, against fp32, on a GPU.

python benchmarks/precision.py

Two models: a smooth one without batch statistics, and small CNNs with them and with ReLUs. The first row is a plain sum
of the losses without any balancer: what the format itself costs.
"""

from __future__ import annotations

import torch
from step import METHODS
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models import CNN1d, CNN2d, LateFusion

SHAPES = {"smooth": {"audio": (64,), "video": (96,)}, "CNN": {"audio": (4, 128), "video": (3, 32, 32)}}


def encoders(kind: str) -> dict[str, nn.Module]:
    if kind == "CNN":
        return {"audio": CNN1d(4), "video": CNN2d(3)}
    sizes = {"audio": 64, "video": 96}
    return {name: nn.Sequential(nn.Linear(size, 128), nn.Tanh(), nn.Linear(128, 64)) for name, size in sizes.items()}


def gradient(kind: str, name: str | None, dtype: torch.dtype | None, factor: float) -> Tensor:
    torch.manual_seed(0)
    balancer = METHODS[name]() if name is not None else None
    model = LateFusion(encoders(kind), 5, unimodal=balancer.needs.view if balancer is not None else "head").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = {key: torch.randn(256, *shape, device="cuda") for key, shape in SHAPES[kind].items()}
    # Labels that can be learnt: with random ones the gradients of samples nearly cancel, and rounding is left.
    label = (inputs["audio"].flatten(1)[:, :5] + inputs["video"].flatten(1)[:, :5]).argmax(dim=1)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    with torch.autocast("cuda", dtype=dtype or torch.float32, enabled=dtype is not None):
        losses = {k: factor * F.cross_entropy(z, label, reduction="none") for k, z in model(inputs).items()}
    if balancer is None:
        loss = torch.stack([f.mean() for f in losses.values()]).sum()
    else:
        loss = balancer.attach(model, optimizer=optimizer)(losses)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    cases = [
        (kind, dtype, factor)
        for kind in SHAPES
        for dtype, factor in ((torch.float16, 1.0), (torch.float16, 1e-4), (torch.bfloat16, 1.0))
    ]
    print("relative error of the whole gradient against fp32")
    titles = [f"{kind} {str(dtype)[6:]}" + (" ·1e-4" if factor < 1 else "") for kind, dtype, factor in cases]
    print(f"{'method':<18}" + "".join(f"{title:>22}" for title in titles))
    for name in (None, *METHODS):
        errors = []
        for kind, dtype, factor in cases:
            exact = gradient(kind, name, None, factor)
            errors.append(float((gradient(kind, name, dtype, factor) - exact).norm() / exact.norm()))
        print(f"{name or 'sum, no balancer':<18}" + "".join(f"{error:>22.3%}" for error in errors))


if __name__ == "__main__":
    main()
