"""Training by TCMax: what a model and a method have to be for it."""

from equipoise.balance.needs import Needs
from equipoise.training.settings import Settings


def tcmax_problems(needs: Needs, settings: Settings) -> list[str]:
    """Return every reason why a model cannot learn by TCMax; empty where the settings do not ask for it."""
    if settings.loss != "tcmax":
        return []
    dropout = needs.model.get("dropout", settings.dropout)
    problems = {
        f"the fused output to be a sum over modalities; type fusion=concat or fusion=sum, not {settings.fusion}": (
            settings.fusion not in ("concat", "sum")
        ),
        f"late fusion, whose shares are known; type model=auto, not {settings.model}": settings.model != "auto",
        f"class_weight=none, found {settings.class_weight}: its mean over all combinations knows no weights": (
            settings.class_weight != "none"
        ),
        f"no modality dropout, found {dropout:g}: shares are those of all sensors": dropout > 0,
        "a method without objectives of permuted features or responses, whose fused loss is that of its output": (
            needs.further
        ),
        "step=given: the smoothness of its objective is not known": settings.step == "safe",
        "parallel=ddp: shares are taken outside the parts that fsdp gathers": settings.parallel == "fsdp",
    }
    return [f"loss=tcmax expects {problem}" for problem, found in problems.items() if found]
