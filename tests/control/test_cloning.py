"""Demonstrations as data: chunks by hand and against a slow loop, parts without a common episode, encoders."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from control.made_data import made_up_demonstrations
from equipoise.control.cloning import SENSORS, SETTINGS, action_chunks, cloning_splits, first_held_out, settings_for
from equipoise.control.encoders import FlatMLP, SpatialSoftmaxCNN
from equipoise.models.task import Regression
from equipoise.util.errors import BadInput

LENGTHS = [7, 3, 9, 1, 5, 6, 4, 8, 2, 5, 3, 4, 6]

# -- chunks --


def test_chunks_by_hand() -> None:
    action = np.array([[1, -1], [2, -2], [3, -3], [4, -4], [5, -5]], np.float32)
    chunks = action_chunks(action, np.array([2, 2, 2, 7, 7]), horizon=3)
    assert chunks.tolist() == [
        [1, -1, 2, -2, 3, -3],
        [2, -2, 3, -3, 3, -3],
        [3, -3, 3, -3, 3, -3],
        [4, -4, 5, -5, 5, -5],
        [5, -5, 5, -5, 5, -5],
    ]


@pytest.mark.parametrize("horizon", [1, 2, 8])
def test_chunks_are_those_of_a_loop_and_never_cross_episodes(horizon: int) -> None:
    demonstrations = made_up_demonstrations(LENGTHS, seed=horizon)
    expected = []
    for number, length in enumerate(LENGTHS):
        own = demonstrations.action[demonstrations.episode == number]
        expected += [[own[min(step + later, length - 1)] for later in range(horizon)] for step in range(length)]
    np.testing.assert_array_equal(
        action_chunks(demonstrations.action, demonstrations.episode, horizon),
        np.array(expected).reshape(-1, 3 * horizon),
    )


# -- parts --


def test_parts_share_no_episode_and_hold_every_step_once() -> None:
    for count in (3, 4, 19, 20, 41):
        demonstrations = made_up_demonstrations((LENGTHS * 4)[:count], seed=count)
        splits = cloning_splits(demonstrations, ("force",))
        groups = [set(part.group.tolist()) for part in splits.parts.values() if part.group is not None]
        held_out = max(1, count // 10)
        assert [len(own) for own in groups] == [count - 2 * held_out, held_out, held_out]
        assert set.union(*groups) == set(range(count))
        index = torch.cat([part.index for part in splits.parts.values() if part.index is not None])
        assert index.tolist() == list(range(len(demonstrations.action)))
        for part in splits.parts.values():
            assert part.group is not None
            assert part.index is not None
            assert part.group.tolist() == demonstrations.episode[part.index.numpy()].tolist()
        first, second = first_held_out(demonstrations.episode)
        assert (first, second - first) == (len(splits.train), len(splits.validation))


def test_labels_are_chunks_in_their_own_units() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    splits = cloning_splits(demonstrations, horizon=4)
    label = torch.cat([part.label for part in splits.parts.values()])
    np.testing.assert_array_equal(label, action_chunks(demonstrations.action, demonstrations.episode, 4))
    assert splits.classes[:4] == ("x0", "y0", "z0", "x1")
    task, learnt = splits.task, splits.train.label
    assert isinstance(task, Regression)
    assert torch.allclose(task.mean, learnt.mean(0), atol=1e-6)
    assert torch.allclose(task.deviation, learnt.std(0))


def test_training_steps_alone_decide_the_scale() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    splits, held_out = cloning_splits(demonstrations), first_held_out(demonstrations.episode)[0]
    odd = demonstrations.proprioception.copy()
    odd[held_out:] *= 100
    again = cloning_splits(made_up_demonstrations(LENGTHS, proprioception=odd))
    assert torch.equal(again.train.inputs["proprioception"], splits.train.inputs["proprioception"])
    learnt = demonstrations.proprioception[:held_out].astype(np.float64)
    for part, rows in (("train", slice(0, held_out)), ("test", slice(-LENGTHS[-1], None))):
        expected = (demonstrations.proprioception[rows] - learnt.mean(0)) / learnt.std(0, ddof=1)
        np.testing.assert_allclose(splits.parts[part].inputs["proprioception"], expected, atol=1e-5)
    force = splits.train.inputs["force"]
    np.testing.assert_allclose(force.mean((0, 2)), 0, atol=1e-5)  # a channel has one scale for its whole window
    np.testing.assert_allclose(force.std((0, 2)), 1, atol=1e-2)


def test_pictures_stay_bytes_and_are_seen_from_0_to_1() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    train = cloning_splits(demonstrations).train
    assert train.inputs["camera"].dtype == torch.uint8
    seen = train.views["camera"](train.inputs["camera"], None, None)
    assert torch.equal(seen, train.inputs["camera"].float() * (1 / 255))
    assert not cloning_splits(demonstrations, ("force",)).train.views


def test_parts_are_copies() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    demonstrations.camera.flags.writeable = False  # as of a memory map
    cloning_splits(demonstrations).train.inputs["camera"].zero_()
    assert demonstrations.camera.any()


def test_problems_are_told_together() -> None:
    demonstrations = made_up_demonstrations([3, 4])
    with pytest.raises(BadInput) as caught:
        cloning_splits(demonstrations, ("camera", "radar"))
    assert "unknown sensor 'radar'; expected some of proprioception, camera, force" in str(caught.value)
    assert "expected 3 episodes or more, one for each part, found 2" in str(caught.value)
    backwards = made_up_demonstrations([2, 2, 2], episode=np.array([0, 0, 2, 2, 1, 1]))
    with pytest.raises(BadInput, match="expected episodes in the order of their numbers"):
        cloning_splits(backwards)


def test_every_sensor_has_the_encoder_of_the_study_unless_others_are_named() -> None:
    words = settings_for(("force", "camera")).encoder
    force, camera = "equipoise.control.encoders.FlatMLP", "equipoise.control.encoders.SpatialSoftmaxCNN"
    assert words == f"force:{force},camera:{camera}"
    assert settings_for(SENSORS).encoder == f"proprioception:mlp,camera:{camera},force:{force}"
    own = SETTINGS.changed({"encoder": "mlp"})
    assert settings_for(SENSORS, own) is own
    some = SETTINGS.changed({"encoder": "camera:cnn2d"})
    assert settings_for(("camera", "force"), some).encoder == f"camera:cnn2d,force:{force}"
    assert settings_for(("force",), some).encoder == f"force:{force}"


# -- encoders --


def places(encoder: SpatialSoftmaxCNN, pictures: Tensor) -> Tensor:
    """The places that an encoder reads, rows first, [B, 2 · channels]; its convolutions pass channel 0 through."""
    encoder.layers = nn.Sequential()
    with torch.no_grad():
        for layer in encoder.convolutions:
            if isinstance(layer, nn.Conv2d):
                middle = layer.kernel_size[0] // 2
                layer.weight.zero_()
                layer.weight[0, 0, middle, middle] = 1
                nn.init.zeros_(layer.get_parameter("bias"))
        return encoder(pictures)


def blobs(cells: list[tuple[int, int]], height: int, width: int, light: float = 1.0) -> Tensor:
    pictures = torch.zeros(len(cells), 1, height, width)
    for picture, (row, column) in zip(pictures, cells, strict=True):
        picture[0, row, column] = light
    return pictures


def test_a_blob_is_where_geometry_says() -> None:
    height, width, light = 9, 17, 1.7
    cells = [(0, 0), (8, 16), (4, 8), (2, 13), (3, 13)]
    found = places(SpatialSoftmaxCNN((1, height, width), widths=(1,), strides=(1,)), blobs(cells, height, width, light))
    # The blob has the share e^light / (e^light + cells − 1); all other cells together pull to the far side of the
    # middle, since the places of all cells add up to zero.
    other = 1 / (np.exp(light) + height * width - 1)
    share = np.exp(light) * other
    expected = np.array([[-1 + 2 * row / (height - 1), -1 + 2 * column / (width - 1)] for row, column in cells])
    np.testing.assert_allclose(found, (share - other) * expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (0, 3), (-2, 1)])
def test_a_moved_blob_moves_its_place(rows: int, columns: int) -> None:
    """The strides of the encoder are 2 and 2, so four pixels are one of 16 cells, whose places are 2 / 15 apart."""
    cells = [(24, 32), (24 + 4 * rows, 32 + 4 * columns)]
    found = places(SpatialSoftmaxCNN((1, 64, 64)), blobs(cells, 64, 64, light=100.0))[:, [0, 32]]
    assert torch.allclose(found[1] - found[0], torch.tensor([2 / 15 * rows, 2 / 15 * columns]), atol=1e-5)
    assert torch.allclose(found[0], torch.tensor([-1 + 2 * 6 / 15, -1 + 2 * 8 / 15]), atol=1e-5)


def test_two_blobs_alike_are_seen_half_way() -> None:
    picture = blobs([(2, 3)], 11, 11, 50.0) + blobs([(6, 9)], 11, 11, 50.0)
    found = places(SpatialSoftmaxCNN((1, 11, 11), widths=(1,), strides=(1,)), picture)
    assert torch.allclose(found, torch.tensor([[-1 + 2 * 4 / 10, -1 + 2 * 6 / 10]]), atol=1e-5)


def test_a_camera_encoder_keeps_signs_learns_and_refuses_other_shapes() -> None:
    torch.manual_seed(0)  # some weights leave every unit of the last layer at zero
    encoder = SpatialSoftmaxCNN((3, 64, 64), features=7)
    assert isinstance(encoder.convolutions[-1], nn.Conv2d)  # no ReLU before the softmax
    output = encoder(torch.rand(5, 3, 64, 64))
    assert output.shape == (5, 7)
    output.sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in encoder.parameters())
    assert encoder.sharpness.grad is not None
    assert encoder.sharpness.grad.any()
    with pytest.raises(ValueError, match=r"expected \[B, C, H, W\] with C = 3; found \[5, 1, 64, 64\]"):
        encoder(torch.rand(5, 1, 64, 64))


def test_windows_are_read_as_all_their_numbers() -> None:
    torch.manual_seed(0)
    encoder = FlatMLP((6, 10), features=5, hidden=4)
    windows = torch.randn(3, 6, 10)
    first, second = (layer for layer in encoder.layers if isinstance(layer, nn.Linear))
    hidden = (windows.reshape(3, 60) @ first.weight.T + first.bias).relu()
    assert torch.allclose(encoder(windows), (hidden @ second.weight.T + second.bias).relu(), atol=1e-6)
    assert encoder.features == encoder(windows).shape[1] == 5
    assert encoder(windows).any()
