from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.models import MLP, LateFusion


def model_and_inputs(**options: Any) -> tuple[LateFusion, dict[str, Tensor]]:
    model = LateFusion({"audio": MLP(3, features=4), "cam_left": MLP(4, features=5)}, classes=3, **options)
    return model, {"audio": torch.randn(7, 3), "cam_left": torch.randn(7, 4)}


def test_all_problems_of_the_arguments_are_told_at_once() -> None:
    wrong: Any = "heads"
    encoders: Any = {"fused": MLP(2), "a_length": nn.ReLU(), "b": "encoder", "video": nn.ReLU()}
    with pytest.raises(ValueError, match="fused") as caught:
        LateFusion(encoders, unimodal=wrong, dropout=1.0, features={"vidoe": 4, "b": 0})
    message = str(caught.value)
    for part in (
        "called 'fused'",
        "called 'a_length'",
        "'b' must be an nn.Module, found str",
        "encoder of 'a_length', ReLU, could not be told",
        "encoder of 'video', ReLU, could not be told. Write features={'video': …}",
        "Did you mean 'video'?",
        "features['b'] must be a whole number of at least 1, found 0",
        "either classes or head; found neither",
        "Unknown unimodal: 'heads'",
        "dropout must be at least 0 and less than 1, found 1.0",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 3, "head": nn.Linear}, "either classes or head; found both"),
        ({"classes": 1}, r"at least 2, found 1.*nn\.Linear\(size, 1\)"),
        ({"classes": 3, "dropout": -0.1}, "found -0.1"),
        ({"classes": 3, "fusion": "flim"}, "Did you mean 'film'"),
        ({"classes": 3, "fusion": "film"}, "FiLM expected at least two modalities"),
        ({"classes": 3, "fusion": "gated", "unimodal": "split"}, "additive fusion; Gated with this head is not"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LateFusion({"audio": MLP(2)}, **options)


def test_split_needs_a_linear_head_on_a_concatenation() -> None:
    with pytest.raises(ValueError, match="additive fusion; Concat with this head is not"):
        LateFusion({"a": MLP(2)}, head=lambda size: nn.Sequential(nn.Linear(size, 2)), unimodal="split")


def test_a_head_must_be_a_module() -> None:
    no_module: Any = torch.zeros
    with pytest.raises(TypeError, match=r"head must make an nn.Module.*found Tensor"):
        LateFusion({"a": MLP(2)}, head=no_module)


def test_no_encoder_at_all() -> None:
    with pytest.raises(ValueError, match="at least one encoder; found none"):
        LateFusion({}, classes=3)


def test_bad_inputs() -> None:
    model, inputs = model_and_inputs()
    with pytest.raises(ValueError, match=r"'audoi' is none of 'audio', 'cam_left'. Did you mean 'audio'") as caught:
        model({"audoi": inputs["audio"], "label": torch.ones(7)}, {"cam_rihgt": torch.ones(7)})
    assert all(part in str(caught.value) for part in ("'label'", "'cam_rihgt'", "found none"))
    with pytest.raises(ValueError, match=r"at least one of 'audio', 'cam_left'; found none"):
        model({"audio": None})
    with pytest.raises(ValueError, match=r"'cam_left' was expected to give \[7, 5\]; found \[3, 5\]"):
        model({**inputs, "cam_left": inputs["cam_left"][:3]})
    with pytest.raises(ValueError, match=r"Unknown modality: 'audio_length'"):
        model(inputs, {"audio_length": torch.ones(7)})
    recurrent = LateFusion({"steps": nn.GRU(2, 4)}, classes=3, features={"steps": 4})
    with pytest.raises(ValueError, match=r"\[B, 4\]; found <class 'tuple'>"):
        recurrent({"steps": torch.zeros(2, 5, 2)})
    wrong = LateFusion({"map": nn.Conv1d(2, 4, 1)}, classes=3, features={"map": 4})
    with pytest.raises(ValueError, match=r"\[2, 4\]; found \[2, 4, 9\].*features=\{'map': …\}"):
        wrong({"map": torch.zeros(2, 2, 9)})


def test_bad_decisions() -> None:
    model, inputs = model_and_inputs(unimodal=None)
    misspelt: Any = "comittee"
    with pytest.raises(ValueError, match="uni-modal outputs; this one was built with unimodal=None"):
        model.predict(inputs, "committee")
    with pytest.raises(ValueError, match=r"Unknown decision: 'comittee'.*Did you mean 'committee'"):
        model.predict(inputs, misspelt)
    regression = LateFusion({"a": MLP(2)}, head=lambda size: nn.Linear(size, 1))
    with pytest.raises(ValueError, match=r"at least two classes; 'fused' has \[3, 1\].*model\(inputs\)"):
        regression.predict({"a": torch.zeros(3, 2)})


def test_inputs_without_names_are_told_how_to_be_given() -> None:
    model, inputs = model_and_inputs()
    loose: Any = inputs["audio"]
    for call in (model, model.features, model.predict):
        with pytest.raises(TypeError, match=r"by name, \{'audio': …, 'cam_left': …\}; found Tensor"):
            call(loose)
    with pytest.raises(TypeError, match="found Tensor"):
        model(*inputs.values())
