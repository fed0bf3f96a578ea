"""Every method, held to the contract."""

from collections.abc import Callable

import pytest

from equipoise import (
    AGM,
    ARL,
    CGGM,
    DGL,
    EW,
    MCR,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    SMP,
    Balancer,
    Barrier,
    InfoReg,
    MMPareto,
    ModDrop,
    PrimalDual,
    Relearn,
    Unimodal,
    methods,
)
from equipoise.testing import BalancerContract

MADE: dict[str, Callable[[], Balancer]] = {
    "AGM": lambda: AGM(strength=1.5, form="fast"),
    "AGMPublished": lambda: AGM(strength=1.5, cap=None, form="published", start=1, stop=9),
    "ARL": lambda: ARL(start=1, stop=5),
    "ARLReleased": lambda: ARL(form="released"),
    "Barrier": lambda: Barrier(strength=2.0),
    "CGGM": CGGM,
    "DGL": DGL,
    "EW": lambda: EW(0.5),
    "InfoReg": lambda: InfoReg(memory=2),
    "MCR": lambda: MCR(penalty=2.0),
    "MCRCollaborative": lambda: MCR(game="collaborative"),
    "MCRIndependent": lambda: MCR(game="independent", weight=0.0),
    "MGDA": MGDA,
    "MGDAAtFeatures": lambda: MGDA(at="features"),
    "MIMO": MIMO,
    "MIMODoubling": lambda: MIMO(penalty=100.0, smoothing=1e-3, overflow="double"),
    "MIMOHard": lambda: MIMO(smoothing=0.0, floor=0.5),
    "MIMOPlainHeads": lambda: MIMO(penalty=100.0, smoothing=0.01, heads="plain"),
    "MIMORelative": lambda: MIMO(smoothing=0.1, relative=True, optimum=0.2),
    "MLB": lambda: MLB(ceiling=1.5, stop=3),
    "MMPareto": MMPareto,
    "MMParetoAtFeatures": lambda: MMPareto(at="features"),
    "MMParetoPerEncoder": lambda: MMPareto(rescale="encoder"),
    "ModDrop": lambda: ModDrop(dropout=0.0),  # the model of the contract drops nothing
    "MSES": lambda: MSES(patience=1, rollback=True),
    "MSL": MSL,
    "MSLR": lambda: MSLR(memory=2),
    "OGM": OGM,
    "OGMGE": lambda: OGMGE(noise="after"),
    "OGMGEWindow": lambda: OGMGE(start=1, stop=3),
    "PrimalDual": lambda: PrimalDual(optimum=0.1),
    "PrimalDualScaledHeads": lambda: PrimalDual(optimum="zero", heads="scaled", memory=1, ceiling=0.5),
    "Relearn": lambda: Relearn(every=2),
    "SMP": lambda: SMP(stage=4),  # after seven epochs two of three modalities wait
    "Unimodal": Unimodal,
}


def held_to_the_contract(name: str, make: Callable[[], Balancer]) -> type[BalancerContract]:
    """A class of tests for one method, as its author would write it."""
    return type(f"Test{name}", (BalancerContract,), {"make": lambda self: make(), "__module__": __name__})  # noqa: ARG005


globals().update({f"Test{name}": held_to_the_contract(name, make) for name, make in MADE.items()})


def test_every_method_is_held_to_it() -> None:
    classes = {one for one in vars(methods).values() if isinstance(one, type) and issubclass(one, Balancer)}
    assert {type(make()) for make in MADE.values()} == classes


@pytest.mark.parametrize("method", ["weigh", "mix"])
def test_a_method_that_answers_nothing_says_what_it_lacks(method: str) -> None:
    base = {"weigh": Balancer.__subclasses__()[0], "mix": Balancer.__subclasses__()[1]}[method]
    with pytest.raises(TypeError, match=rf"Empty: expected a method '{method}'"):
        type("Empty", (base,), {})()
