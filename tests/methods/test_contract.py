"""Every method, held to the contract."""

from equipoise import (
    AGM,
    ARL,
    CGGM,
    DGL,
    EW,
    GAP,
    MCR,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    PDMP,
    SMP,
    Balancer,
    InfoReg,
    MMPareto,
    ModDrop,
    PrimalDual,
    Relearn,
    Unimodal,
)
from equipoise.testing import BalancerContract


class TestPrimalDual(BalancerContract):
    def make(self) -> Balancer:
        return PrimalDual(optimum=0.1)


class TestPrimalDualScaledHeads(BalancerContract):
    def make(self) -> Balancer:
        return PrimalDual(optimum="zero", heads="scaled", memory=1, ceiling=0.5)


class TestMIMORelative(BalancerContract):
    def make(self) -> Balancer:
        return MIMO(smoothing=0.1, relative=True, optimum=0.2)


class TestMIMO(BalancerContract):
    def make(self) -> Balancer:
        return MIMO()


class TestMIMOHard(BalancerContract):
    def make(self) -> Balancer:
        return MIMO(smoothing=0.0, floor=0.5)


class TestMIMODoubling(BalancerContract):
    def make(self) -> Balancer:
        return MIMO(penalty=100.0, smoothing=1e-3, overflow="double")


class TestMIMOPlainHeads(BalancerContract):
    def make(self) -> Balancer:
        return MIMO(penalty=100.0, smoothing=0.01, heads="plain")


class TestMSL(BalancerContract):
    def make(self) -> Balancer:
        return MSL()


class TestModDrop(BalancerContract):
    def make(self) -> Balancer:
        return ModDrop(dropout=0.0)  # the model of the contract drops nothing


class TestEW(BalancerContract):
    def make(self) -> Balancer:
        return EW(0.5)


class TestUnimodal(BalancerContract):
    def make(self) -> Balancer:
        return Unimodal()


class TestMGDA(BalancerContract):
    def make(self) -> Balancer:
        return MGDA()


class TestMGDAAtFeatures(BalancerContract):
    def make(self) -> Balancer:
        return MGDA(at="features")


class TestMMPareto(BalancerContract):
    def make(self) -> Balancer:
        return MMPareto()


class TestMMParetoPerEncoder(BalancerContract):
    def make(self) -> Balancer:
        return MMPareto(rescale="encoder")


class TestMMParetoAtFeatures(BalancerContract):
    def make(self) -> Balancer:
        return MMPareto(at="features")


class TestGAP(BalancerContract):
    def make(self) -> Balancer:
        return GAP(modality="audio")


class TestGAPReleased(BalancerContract):
    def make(self) -> Balancer:
        return GAP(modality="audio", form="released", start=2, stop=7)


class TestOGM(BalancerContract):
    def make(self) -> Balancer:
        return OGM()


class TestOGMGE(BalancerContract):
    def make(self) -> Balancer:
        return OGMGE(noise="after")


class TestOGMGEWindow(BalancerContract):
    def make(self) -> Balancer:
        return OGMGE(start=1, stop=3)


class TestAGM(BalancerContract):
    def make(self) -> Balancer:
        return AGM(strength=1.5, form="fast")


class TestAGMUncapped(BalancerContract):
    def make(self) -> Balancer:
        return AGM(strength=1.5, cap=None, form="fast")


class TestMSLR(BalancerContract):
    def make(self) -> Balancer:
        return MSLR(memory=2)


class TestMSES(BalancerContract):
    def make(self) -> Balancer:
        return MSES(patience=1, rollback=True)


class TestSMP(BalancerContract):
    def make(self) -> Balancer:
        return SMP(stage=4)  # after seven epochs two of three modalities wait


class TestInfoReg(BalancerContract):
    def make(self) -> Balancer:
        return InfoReg(memory=2)


class TestRelearn(BalancerContract):
    def make(self) -> Balancer:
        return Relearn(every=2)


class TestDGL(BalancerContract):
    def make(self) -> Balancer:
        return DGL()


class TestMLB(BalancerContract):
    def make(self) -> Balancer:
        return MLB(ceiling=1.5)


class TestARL(BalancerContract):
    def make(self) -> Balancer:
        return ARL(start=1, stop=5)


class TestARLReleased(BalancerContract):
    def make(self) -> Balancer:
        return ARL(form="released")


class TestPDMP(BalancerContract):
    def make(self) -> Balancer:
        return PDMP(after=2)


class TestPDMPGiven(BalancerContract):
    def make(self) -> Balancer:
        return PDMP(dominant="audio")


class TestCGGM(BalancerContract):
    def make(self) -> Balancer:
        return CGGM()


class TestMCR(BalancerContract):
    def make(self) -> Balancer:
        return MCR(penalty=2.0)


class TestMCRIndependent(BalancerContract):
    def make(self) -> Balancer:
        return MCR(game="independent", weight=0.0)


class TestMCRCollaborative(BalancerContract):
    def make(self) -> Balancer:
        return MCR(game="collaborative")
