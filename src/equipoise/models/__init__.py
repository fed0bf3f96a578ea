"""Late-fusion models: encoders, fusions, and the committee of heads."""

from equipoise.models.choose import encoder_for as encoder_for
from equipoise.models.clusters import purity as purity
from equipoise.models.committee import CommitteeFit as CommitteeFit
from equipoise.models.committee import fit_committee as fit_committee
from equipoise.models.committee import fit_weights as fit_weights
from equipoise.models.encoders import MLP as MLP
from equipoise.models.encoders import CNN1d as CNN1d
from equipoise.models.encoders import CNN2d as CNN2d
from equipoise.models.encoders import Frames as Frames
from equipoise.models.encoders import RegularisedMLP as RegularisedMLP
from equipoise.models.encoders import ResNet18 as ResNet18
from equipoise.models.evaluation import ShapleyResponses as ShapleyResponses
from equipoise.models.fusion import Concat as Concat
from equipoise.models.fusion import FiLM as FiLM
from equipoise.models.fusion import Fusion as Fusion
from equipoise.models.fusion import Gated as Gated
from equipoise.models.fusion import Sum as Sum
from equipoise.models.fusion import build_fusion as build_fusion
from equipoise.models.inception import Inception as Inception
from equipoise.models.late_fusion import LateFusion as LateFusion
from equipoise.models.permuted import permutation_losses as permutation_losses
from equipoise.models.sequence import SequenceTransformer as SequenceTransformer
from equipoise.models.sound import LogMel as LogMel
from equipoise.models.tcmax import tcmax_loss as tcmax_loss
from equipoise.models.vision import SmallResNet as SmallResNet
from equipoise.models.vision import Video as Video
