"""Methods and data sets by name, and the words that set them."""

import json
import pickle

import pytest

from equipoise.data import Splits
from equipoise.data.source import all_data, data_set
from equipoise.study.budget import budget_line
from equipoise.study.registry import all_methods, entries
from equipoise.study.study import plan
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, look_up

NAMES = [
    "agm",
    "arl",
    "barrier",
    "cggm",
    "dgl",
    "ensemble",
    "ew",
    "inforeg",
    "mcr",
    "mgda",
    "mimo",
    "mlb",
    "mmpareto",
    "moddrop",
    "mses",
    "msl",
    "mslr",
    "ogm",
    "ogmge",
    "primaldual",
    "relearn",
    "smp",
    "unimodal",
]


def test_every_method_has_its_plain_name() -> None:
    assert list(all_methods()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_made_from_its_defaults(name: str) -> None:
    (entry,) = entries([name])
    assert entry.label == name
    assert type(entry.balancer()) is entry.method.make
    assert json.loads(json.dumps(entry.params)) == entry.params == entry.method.parameters
    assert set(entry.method.tried) <= set(entry.params)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_says_in_one_line_what_it_is(name: str) -> None:
    summary = all_methods()[name].summary
    assert summary.endswith(".")
    assert "\n" not in summary
    assert 20 < len(summary) < 160


def test_summaries_differ() -> None:
    assert len({method.summary for method in all_methods().values()}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_travels_to_another_process(name: str) -> None:
    for data in all_data().values():
        (entry,) = entries([name])
        assert pickle.loads(pickle.dumps((entry, data))) == (entry, data)


def test_every_data_set_loads_and_can_be_trained_on() -> None:
    for name, data in all_data().items():
        found = data.load(None)
        assert isinstance(found, Splits)
        assert found.check().name == name == data.name
        assert data.load(data.folds - 1).fingerprint() != found.fingerprint()


def test_words_set_settings_and_parameters() -> None:
    msl, mimo = entries(["msl", "mimo"], ["epochs=3", "penalty=5", "mimo.smoothing=1", "optimizer=adam"])
    assert msl.settings == mimo.settings == Settings(epochs=3, optimizer="adam")
    assert (mimo.params["penalty"], mimo.params["smoothing"]) == (5.0, 1.0)
    assert msl.params == {}
    assert entries(["mses"], ["rollback=yes"])[0].balancer().rollback is True


def test_the_last_of_two_equal_words_counts() -> None:
    assert entries(["msl"], ["epochs=3", "epochs=4"])[0].settings.epochs == 4


def test_all_is_every_method_once_and_names_may_have_spaces() -> None:
    assert [entry.label for entry in entries(["all", "mimo"])] == NAMES
    assert [entry.label for entry in entries(["msl", " mimo", "msl"])] == ["msl", "mimo"]


def test_a_parameter_of_several_methods_wants_an_owner() -> None:
    with pytest.raises(ValueError, match=r"stands for several things here; type mimo\.smoothing=1 or mses\.smoothing"):
        entries(["mimo", "mses"], ["smoothing=1"])


def test_a_setting_and_a_parameter_of_one_name_are_told_apart() -> None:
    with pytest.raises(ValueError, match=r"type run\.patience=3 or mses\.patience=3"):
        entries(["mses"], ["patience=3"])
    (entry,) = entries(["mses"], ["run.patience=3", "mses.patience=4"])
    assert (entry.settings.patience, entry.params["patience"]) == (3, 4)
    assert entries(["msl"], ["patience=3"])[0].settings.patience == 3


@pytest.mark.parametrize(
    ("names", "word", "message"),
    [
        (["mimmo"], "", "unknown method 'mimmo'; did you mean 'mimo'?"),
        (["qqqq"], "", "unknown method 'qqqq'; expected one of agm, "),
        ([""], "", "unknown method ''; expected one of agm, "),
        ([], "", "no method was named; choose from agm, "),
        (["mimo"], "penalty=high", "mimo.penalty should be a number, found 'high'"),
        (["mimo"], "mimo.heads=al", "mimo.heads should be one of"),
        (["mimo"], "penality=1", "unknown setting 'penality'; did you mean 'mimo.penalty'?"),
        (["mimo"], "mimo.penality=1", "unknown parameter of mimo 'penality'; did you mean 'penalty'?"),
        (["msl"], "mimo.penalty=1", "mimo.penalty: 'mimo' is not among the chosen methods ['msl']"),
        (["msl"], "run.epoch=1", "unknown setting 'epoch'; did you mean 'epochs'?"),
        (["msl"], "epoch=1", "unknown setting 'epoch'; did you mean 'epochs'?"),
        (["msl"], "epochs", "'epochs' should read name=value, such as epochs=30"),
        (["msl"], "=3", "'=3' should read name=value"),
        (["msl"], "run.=3", "unknown setting"),
        (["msl"], "batch=0", "batch should be a whole number from 1 to 2,147,483,647, found 0"),
        (["mimo"], "penalty=-1", "penalty"),
        (["mimo"], "penalty=nan", "penalty"),
        (["mses"], "mses.patience=-1", "patience should be zero epochs or more"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(names: list[str], word: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as found:
        entries(names, [word] if word else [])
    assert message in str(found.value)


def test_all_mistakes_are_answered_together() -> None:
    with pytest.raises(ValueError, match=r".") as found:
        entries(["mimmo", "mimo"], ["epochs=many", "lr=0", "penalty=high", "what"])
    lines = str(found.value).splitlines()
    assert len(lines) == 5
    assert all(any(part in line for line in lines) for part in ("mimmo", "epochs", "lr", "penalty", "what"))


def test_looking_up() -> None:
    assert look_up("data set", "watch", all_data()).name == "watch"
    with pytest.raises(ValueError, match=r"unknown data set .wach.; did you mean .watch.\?"):
        look_up("data set", "wach", all_data())


def test_an_optimum_for_other_modalities_is_refused_before_a_run() -> None:
    chosen = entries(["mimo", "primaldual"], ["mimo.optimum=easy:0.1,hrad:0.5", "primaldual.optimum=easy:0.1"])
    with pytest.raises(BadInput) as found:
        plan(chosen, data_set("generated"), [0], [None])
    expected = "optimum should have one entry for each of ['easy', 'hard'], found"
    assert str(found.value).splitlines() == [f"MIMO: {expected} ['easy', 'hrad']", f"PrimalDual: {expected} ['easy']"]


def test_the_budget_counts_the_uni_modal_run_once() -> None:
    words = ["epochs=2", "mimo.optimum=final", "primaldual.optimum=trajectory"]
    jobs, splits = plan(entries(["msl", "mimo", "primaldual"], words), data_set("generated"), [0, 1], [None])
    assert budget_line(jobs, splits).startswith("budget: 7 trainings, ")  # three methods, two seeds, and one run
