"""Settings of a run: read from words, checked together."""

from typing import Literal

import pytest

from equipoise.training import settings
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings, convert


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "30", 30),
        ("epochs", "0", 0),
        ("epochs", "auto", "auto"),
        ("average", "0.99", 0.99),
        ("select", "loss", "loss"),
        ("lr", "1e-3", 1e-3),
        ("lr", "1", 1.0),
        ("compile", "true", True),
        ("compile", "No", False),
        ("compile", "1", True),
        ("clip", "none", None),
        ("clip", "2", 2.0),
        ("patience", "None", None),
        ("patience", "3", 3),
        ("optimizer", "adamw", "adamw"),
        ("fusion", "film", "film"),
        ("device", "cuda:1", "cuda:1"),
        ("metric", "auroc", "auroc"),
        ("task", "labels", "labels"),
        ("loss", "mse", "mse"),
        ("class_weight", "1,2,5", "1,2,5"),
        ("class_weight", "none", "none"),
    ],
)
def test_a_word_becomes_a_value_of_its_type(name: str, text: str, value: object) -> None:
    found = settings.parse(name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("epochs", "many", "epochs should be a whole number or auto, found 'many'"),
        ("epochs", "2.5", "epochs should be a whole number or auto, found '2.5'"),
        ("lr", "fast", "lr should be a number, found 'fast'"),
        ("clip", "some", "clip should be a number, found 'some'"),
        ("compile", "maybe", "compile should be true or false, auto, found 'maybe'"),
        ("optimizer", "adamm", r"optimizer should be one of sgd, adam, adamw \(did you mean adam\?\), found 'adamm'"),
        ("schedule", "xyz", "schedule should be one of constant, cosine, step, warmup-cosine, found 'xyz'"),
        ("fusion", "concatt", r"did you mean concat\?"),
        ("metric", "balanced", r"metric should be one of .*did you mean balanced_accuracy\?"),
        ("task", "classification", "task should be one of auto, classes, regression, labels"),
    ],
)
def test_a_word_of_the_wrong_type_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings.parse(name, text)


def test_words_for_any_type() -> None:
    assert convert("x", "a", Literal["a", "b"] | None) == "a"
    assert convert("x", "none", Literal["a", "b"] | None) is None
    assert convert("x", "none", str) == "none"


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ValueError, match=r"^settings: ") as found:
        Settings(epochs=-1, batch=0, lr=0, momentum=1, optimizer="sgdd", device="tpu", dropout=2)  # ty: ignore[invalid-argument-type]
    text = str(found.value)
    names = ("epochs", "batch", "lr", "momentum", "optimizer", "device", "dropout")
    assert all(f"{name} should be" in text for name in names)
    assert text.count(";") == len(names) - 1


@pytest.mark.parametrize(
    "name", ["lr", "momentum", "weight_decay", "layer_decay", "dropout", "average", "label_smoothing", "clip"]
)
def test_numbers_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} should be .*, found nan"):
        Settings().changed({name: float("nan")})


@pytest.mark.parametrize(
    "words",
    [
        {"lr": float("inf")},
        {"clip": 0.0},
        {"patience": 0},
        {"accumulate": 0},
        {"layer_decay": 0.0},
        {"layer_decay": 1.1},
    ],
)
def test_limits(words: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(words))} should be"):
        Settings().changed(words)


@pytest.mark.parametrize("text", ["even", "1,two", "0,1", "1,-2", "1,nan", "1,inf", "1,,2", ""])
def test_class_weights_are_numbers_above_zero(text: str) -> None:
    with pytest.raises(ValueError, match=r"class_weight should be none, balanced, or a number .* such as 1,2,5, found"):
        Settings(class_weight=text)
    assert Settings(class_weight="1, 2.5").class_weights() == (1.0, 2.5)
    assert Settings(class_weight="balanced").class_weights() == ()


def test_the_rest_stays() -> None:
    base = Settings(epochs=3)
    assert base.changed({"lr": 0.5}) == Settings(epochs=3, lr=0.5)
    assert base.as_dict()["epochs"] == 3
    assert tuple(base.as_dict()) == settings.names()
    with pytest.raises(ValueError, match="batch should be"):
        base.changed({"batch": 0})


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert device_of(Settings()) == device_of(Settings(device="cpu")) == "cpu"
    with pytest.raises(ValueError, match="device=cuda: expected a GPU, found 0 on this machine; type device=cpu"):
        device_of(Settings(device="cuda"))
    with pytest.raises(ValueError, match=r"precision=fp16: expected a GPU.*type precision=bf16"):
        device_of(Settings(precision="fp16"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert device_of(Settings(precision="fp16")) == "cuda"
    assert device_of(Settings(device="cuda:0")) == "cuda:0"
    with pytest.raises(ValueError, match="device=cuda:1: expected a GPU, found 1 on this machine"):
        device_of(Settings(device="cuda:1"))
