"""Training by TCMax: what a model and a method have to be for it."""

from equipoise.balance.balancer import Balancer
from equipoise.models import LateFusion
from equipoise.models.fusion_model import FusionModel
from equipoise.models.task import Classification
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput


def tcmax_problem(balancer: Balancer, settings: Settings) -> str:
    """Say all reasons why a model cannot learn by TCMax; "" where it can, or the settings do not ask for it."""
    if settings.loss != "tcmax":
        return ""
    dropout = balancer.modality_dropout or settings.dropout
    problems = {
        f"the fused output to be a sum over modalities; type fusion=concat or fusion=sum, not {settings.fusion}": (
            settings.fusion not in ("concat", "sum")
        ),
        f"late fusion, whose shares are known; type model=auto, not {settings.model}": settings.model != "auto",
        f"class_weight=none, found {settings.class_weight}: its mean over all combinations knows no weights": (
            settings.class_weight != "none"
        ),
        f"no modality dropout, found {dropout:g}: shares are those of all sensors": dropout > 0,
        "a method without losses of permuted features, whose fused loss is that of its output": balancer.permutations
        > 0,
        "step=given: the smoothness of its objective is not known": settings.step == "safe",
        "parallel=ddp: shares are taken outside the parts that fsdp gathers": settings.parallel == "fsdp",
    }
    return "\n".join(f"loss=tcmax expects {problem}" for problem, found in problems.items() if found)


def check_responses(model: FusionModel) -> None:
    """Raise a BadInput where a method scales what the fused output receives, which TCMax passes by."""
    task = model.task
    tcmax = isinstance(task, Classification) and task.loss_name == "tcmax"
    if tcmax and isinstance(model, LateFusion) and model.responds:
        raise BadInput(
            "loss=tcmax: expected a method that leaves the fused output as it is; AGM scales the gradient of each "
            "modality's response in it. Choose another method, or loss=auto"
        )
