"""Token numbers of a user's own data stay whole, from the file to the exported graph; other whole numbers do not."""

import json
import pickle
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import MSL
from equipoise.data import Splits
from equipoise.data.own.arrays import read_samples
from equipoise.data.source import data_set, mark_tokens
from equipoise.models.choose import reads_tokens
from equipoise.models.encoders import CNN1d
from equipoise.models.sequence import Tokens
from equipoise.study.registry import entries
from equipoise.study.study import plan
from equipoise.training.settings import Settings
from equipoise.training.step import build_model
from equipoise.util.errors import BadInput

WORDS, STEPS, SAMPLES = 20, 6, 150
HERE = __name__
ARRAYS = np.random.default_rng(0)


class Embedded(nn.Module):
    """Reads tokens, and says so. It cannot be made by chance."""

    reads_tokens = True
    made = 0

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        type(self).made += 1
        self.features = features
        self.vectors = nn.EmbeddingBag(WORDS, features)

    def forward(self, tokens: Tensor) -> Tensor:
        assert not tokens.is_floating_point()
        return self.vectors(tokens)


def embedded(features: int) -> nn.Module:
    return Embedded(features)


def tiny_text() -> nn.Module:
    from transformers import BertConfig

    from equipoise.integrations.transformers import Text

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=STEPS,
    )
    return Text(config)


def mlp(shape: tuple[int, ...], features: int) -> nn.Module:
    return nn.Linear(shape[0], features)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The class stands in the first word of a text; counts are whole numbers that say nothing."""
    random = np.random.default_rng(1)
    label = np.arange(SAMPLES) % 3
    text = random.integers(4, WORDS, (SAMPLES, STEPS))
    text[:, 0], text[:, 4:] = label + 1, 0
    counts, mat = random.integers(0, 9, (SAMPLES, 3)), random.normal(size=(SAMPLES, 4))
    np.savez(tmp_path / "my.npz", text=text, counts=counts, mat=mat, label=label, group=np.arange(SAMPLES) // 30)
    return tmp_path / "my.npz"


@pytest.mark.parametrize(
    ("array", "whole"),
    [
        *((np.ones((4, 3), kind), True) for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")),
        (np.full((4, 2, 3), 2**24 - 1), True),
        (np.full((4, 3), -(2**24)), False),
        (np.full((4, 3), 2**40), False),
        (np.ones((4, 3)), False),
        (np.ones((4, 3), bool), False),
        (np.ones((4, 5, 3), np.uint8), False),  # grey pictures
        ([np.ones(3, int), np.ones(4, int), np.ones(2, int), np.ones(1, int)], False),  # a ragged series
    ],
)
def test_which_numbers_are_whole(array: Any, whole: bool) -> None:
    assert (read_samples({"a": array}, [0, 1, 0, 1]).whole == {"a"}) == whole


def test_tokens_are_kept_and_everything_else_is_standardised() -> None:
    text, mat = ARRAYS.integers(0, 30000, (60, 5)), ARRAYS.normal(3, 2, (60, 2))
    told: dict[str, Any] = {"label": np.arange(60) % 2, "split": np.arange(60) % 3}
    plain = Splits.from_arrays({"text": text, "mat": mat}, **told)
    found = Splits.from_arrays({"text": text, "mat": mat}, **told, tokens=["text"])
    for number, part in enumerate(("train", "validation", "test")):
        inputs = found.parts[part].inputs
        assert inputs["text"].dtype == torch.int64
        assert inputs["text"].tolist() == text[number::3].tolist()
        assert torch.equal(inputs["mat"], plain.parts[part].inputs["mat"])
    assert list(found.scales) == ["mat"]
    assert list(plain.scales) == ["text", "mat"]
    assert plain.train.inputs["text"].mean(dim=0).abs().max() < 1e-5
    assert found.fingerprint() != plain.fingerprint()


def test_what_cannot_be_tokens_is_refused_together() -> None:
    arrays = {"text": np.ones((6, 3)), "mat": np.zeros((6, 3), int), "padded": np.arange(-7, 11).reshape(6, 3)}
    with pytest.raises(BadInput) as found:
        Splits.from_arrays(arrays, [0, 1] * 3, split=[0, 0, 1, 1, 2, 2], tokens=["txt", "text", "mat", "padded"])
    assert "text: expected token numbers, whole ones [N, T], found numbers of another kind" in str(found.value)
    assert "txt: expected token numbers, whole ones [N, T], found no such modality" in str(found.value)
    assert "padded: expected token numbers from 0 on, found -7; pad with 0" in str(found.value)
    assert "mat: " not in str(found.value)


def test_an_encoder_says_what_it_reads() -> None:
    Embedded.made = 0
    assert reads_tokens(f"{HERE}.Embedded", (5,), 8)
    assert Embedded.made == 0, "a class is asked without being made"
    assert reads_tokens(f"{HERE}.embedded", (5,), 8)
    assert reads_tokens("words", (5,), 8)
    for other in ("mlp", f"{HERE}.mlp", "no.such.Encoder", "nonsense"):
        assert not reads_tokens(other, (5,), 8)


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ("auto", ()),
        ("mlp", ()),
        (f"text:{HERE}.Embedded", ("text",)),
        (f"text:{HERE}.embedded,mat:mlp", ("text",)),
        (f"text:{HERE}.Embedded,counts:{HERE}.Embedded", ("text", "counts")),
        (f"counts:{HERE}.mlp", ()),
    ],
)
def test_the_encoder_decides(own: Path, encoder: str, expected: tuple[str, ...]) -> None:
    data = mark_tokens(data_set(str(own)), [(encoder, 64)])
    inputs = pickle.loads(pickle.dumps(data)).load(None).train.inputs
    assert tuple(name for name in inputs if not inputs[name].is_floating_point()) == expected


def test_other_data_says_itself_what_it_holds() -> None:
    data = data_set("generated")
    assert mark_tokens(data, [("words", 64)]) is data


def test_runs_of_a_study_read_the_same(own: Path) -> None:
    lines = entries(["msl", "mimo"], [f"encoder=text:{HERE}.Embedded", "features=8"])
    jobs, splits = plan(lines, data_set(str(own)), [0], [None, 1])
    for job in jobs:
        assert not splits[job.fold].train.inputs["text"].is_floating_point()
        assert job.data.load(job.fold).fingerprint() == job.split, "wherever it is loaded again, it is the same"
    lines[1] = lines[1].changed({}, {"encoder": "auto"})
    with pytest.raises(BadInput, match="expected runs that read the same sensors as token numbers"):
        plan(lines, data_set(str(own)), [0], [None])


def test_numbers_that_are_no_tokens_are_refused(own: Path) -> None:
    lines = entries(["msl"], [f"encoder=mat:{HERE}.Embedded"])
    with pytest.raises(BadInput, match=r"mat: expected token numbers, .* of another kind; store integers"):
        plan(lines, data_set(str(own)), [0], [None])


def test_check_tells_what_is_done_to_each_array(own: Path, equipoise: Any) -> None:
    done = {"text": f"whole, 0 to {WORDS - 1}: standardised", "counts": "whole, 0 to 8: standardised"}
    for words, kept in ([], {}), ([f"encoder=text:{HERE}.Embedded"], {"text": "kept, as token numbers"}):
        code, printed, _ = equipoise("check", "--data", own, *words, "--json")
        assert code == 0
        told = json.loads(printed)["modalities"]
        assert told["mat"]["numbers"] == "standardised"
        for name, plain in done.items():
            assert told[name]["numbers"] == plain.replace("standardised", kept.get(name, "standardised"))
        _, printed, _ = equipoise("check", "--data", own, *words)
        assert all(each["numbers"] in printed and each["encoder"] in printed for each in told.values())
    assert told["text"]["encoder"] == f"{HERE}.Embedded"
    code, printed, _ = equipoise("check", "--data", own, f"encoder=mat:{HERE}.Embedded")
    assert code == 2
    assert "mat: expected token numbers" in printed
    code, _, complaint = equipoise("check", "--data", own, "encoder=txt:words")
    assert code == 2
    assert "Did you mean 'text'?" in complaint


def test_whoever_names_an_array_that_cannot_be_read_hears_of_the_array(tmp_path: Path, equipoise: Any) -> None:
    arrays = {"text": np.zeros((40, 0), np.int64), "mat": np.random.default_rng(0).normal(size=(40, 5))}
    np.savez(tmp_path / "empty.npz", allow_pickle=False, label=np.arange(40) % 2, **arrays)
    code, printed, complaint = equipoise("check", "--data", tmp_path / "empty.npz", f"encoder=text:{HERE}.Embedded")
    assert code == 2
    assert "found an array of shape (40, 0)" in printed
    assert "none of" not in printed + complaint


@pytest.mark.slow
def test_a_transformer_learns_from_tokens_and_is_shipped(own: Path, equipoise: Any, tmp_path: Path) -> None:
    """From the file to the graph: a text encoder finds the word that names the class, since it stays whole."""
    words = [f"encoder=text:{HERE}.tiny_text", "features=8", "epochs=12", "batch=16", "lr=0.02", "optimizer=adamw"]
    code, printed, complaint = equipoise("train", "--data", own, "--out", tmp_path / "one", *words, "--json")
    assert code == 0, complaint
    (row,) = json.loads(printed)
    alone = row["test"]["head"]
    assert alone["text"] > 0.9 > 0.6 > alone["counts"]

    named = ["--encoder", f"text:{HERE}.tiny_text"]
    code, _, complaint = equipoise("export", tmp_path / "one", "--to", "torch-export", "--json")
    assert code == 2
    assert shlex.join(named) in complaint
    code, printed, complaint = equipoise("export", tmp_path / "one", "--to", "torch-export", "--json", *named)
    assert code == 0, complaint
    told = json.loads(printed)
    assert told["verified"]["difference"] < 1e-5
    inputs = {each["name"]: (each["type"], each["meaning"]) for each in told["inputs"]}
    assert inputs["text"] == ("int64", "as the encoder reads it")
    assert inputs["counts"][0] == "float32"
    assert "standardises" in inputs["counts"][1]

    # The data is recognised as that of the run; it cannot be put on trial, since words cannot be disturbed.
    code, _, complaint = equipoise("monitor", tmp_path / "one", "--data", own, "--json", "--trust")
    assert code == 2
    assert "'text' gives none, such as the numbers of words" in complaint
    assert "fingerprint" not in complaint


@pytest.mark.parametrize("encoder", ["tiny_text", "some_words"])
def test_numbers_that_an_encoder_has_no_vector_for_are_refused_with_their_place(encoder: str) -> None:
    inputs = {"text": torch.arange(90).view(30, 3) % 50, "mat": torch.randn(30, 4)}
    splits = Splits.from_arrays(inputs, torch.arange(30) % 2, tokens=["text"])
    settings = Settings(encoder=f"text:{HERE}.{encoder},mat:mlp")
    with pytest.raises(ValueError, match=rf"text: expected token numbers below {WORDS}, .* found \d\d; give it"):
        build_model(splits, MSL(), settings)
    inputs["text"] %= WORDS
    build_model(Splits.from_arrays(inputs, torch.arange(30) % 2, tokens=["text"]), MSL(), settings)


def some_words() -> nn.Module:
    return Tokens(WORDS, CNN1d(12), width=12)
