"""Pictures show the scene where geometry says, with and without OpenGL."""

import sys

import numpy as np
import pytest

from equipoise.control import camera, scene
from equipoise.control.simulator import Simulator
from equipoise.util.errors import BadInput

EYE, UP = np.array([0, -0.205, 0.30]), np.array([0, 0.806, 0.592])  # as in the model
FIELD = np.radians(21)


def has_gl() -> bool:
    return camera.open_camera("auto").name == "gl"


def project(point: np.ndarray) -> np.ndarray:
    """Return the column and row of a point in a picture of 64 × 64 pixels."""
    right, up = np.array([1.0, 0, 0]), UP / np.linalg.norm(UP)
    ahead = np.cross(up, right)
    scale = 32 / np.tan(FIELD / 2) / ((point - EYE) @ ahead)
    return np.array([32 + scale * ((point - EYE) @ right), 32 - scale * ((point - EYE) @ up)])


@pytest.fixture(params=["rays", "gl"])
def simulator(request: pytest.FixtureRequest) -> Simulator:
    if request.param == "gl" and not has_gl():
        pytest.skip("there is no OpenGL here")
    return Simulator(request.param)


def test_hole_is_where_its_projection_says(simulator: Simulator) -> None:
    for hole in np.array([[0, 0], [0.04, 0.04], [-0.04, 0.04], [0.04, -0.04], [-0.04, -0.04], [0.013, -0.021]]):
        peg = np.array([-np.sign(hole[0] or 1) * 0.05, 0.05, 0.05])  # out of the way
        dark = simulator.place(peg, hole, 0.0007, jammed=False)["camera"].max(0) < 40
        rows, columns = np.nonzero(dark)
        assert 12 <= len(rows) <= 40
        np.testing.assert_allclose([columns.mean() + 0.5, rows.mean() + 0.5], project(np.append(hole, 0)), atol=0.7)


def test_peg_is_where_its_projection_says(simulator: Simulator) -> None:
    for peg in np.array([[0, 0, 0.02], [0.02, -0.02, 0.03], [-0.02, 0.01, 0.001]]):
        red, green, blue = simulator.place(peg, np.array([0.035, 0.035]), 0.0007, jammed=False)["camera"].astype(int)
        rows, columns = np.nonzero((red > green + 20) & (green > blue + 10))
        front = project(peg - np.array([0, scene.PEG, 0]))  # the lower edge of the face towards the camera
        assert rows.max() + 0.5 == pytest.approx(front[1], abs=1)
        assert columns[rows == rows.max()].mean() + 0.5 == pytest.approx(front[0], abs=1)


def test_rays_show_distance() -> None:
    simulator = Simulator("rays")
    picture = simulator.place(np.array([0.05, 0.05, 0.05]), np.array([0.03, 0.03]), 0.0007, jammed=False)["camera"]
    brightness = picture.sum(0)[:, 10].astype(int)  # from the far end of the plate to the near one
    assert (np.diff(brightness) >= 0).all()
    assert brightness[-1] > 1.3 * brightness[0]


def test_rays_near_what_moves_and_a_kept_plate_make_the_whole_picture() -> None:
    """Every ray cast anew gives the same bytes, also where the peg is partly or wholly out of the picture."""
    simulator, random = Simulator("rays"), np.random.default_rng(0)
    whole = camera.RayCamera(scene.PICTURE, scene.PICTURE)
    for number in range(60):
        peg = np.append(random.uniform(-scene.WORKSPACE, scene.WORKSPACE, 2), random.uniform(-0.02, scene.CEILING))
        hole = random.uniform(-scene.UNSEEN, scene.UNSEEN, 2)
        picture = simulator.place(peg, hole, random.uniform(*scene.CLEARANCES), jammed=number % 2 == 0)["camera"]
        expected = whole._seen(simulator._data, whole._rays, None).transpose(2, 0, 1)
        np.testing.assert_array_equal(picture, expected)
    for speed in (0.05, -0.05):  # what was kept of the plate is not what was drawn over it
        for _ in range(10):
            picture = simulator.step(np.array([speed, speed, 0.0]))["camera"]
        expected = whole._seen(simulator._data, whole._rays, None).transpose(2, 0, 1)
        np.testing.assert_array_equal(picture, expected)


def test_plates_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera, "KEPT", 3)
    simulator, fresh = Simulator("rays"), camera.RayCamera(scene.PICTURE, scene.PICTURE)
    for seed in (0, 1, 2, 3, 4, 0, 1):
        simulator.reset(seed)
        picture = fresh.draw(simulator._data)
        assert len(fresh._backgrounds) <= 3
        np.testing.assert_array_equal(picture, fresh._seen(simulator._data, fresh._rays, None))


def test_a_picture_of_any_size_shows_the_same(simulator: Simulator) -> None:
    small = simulator.place(np.array([-0.02, 0.02, 0.03]), np.array([0.01, 0.0]), 0.0007, jammed=False)["camera"]
    large = simulator.picture(192, 192)
    assert large.shape == (192, 192, 3)
    assert large.dtype == np.uint8
    centres = large[1::3, 1::3].transpose(2, 0, 1).astype(int)  # the middle pixel of each 3 × 3 has the same ray
    assert np.mean(np.abs(centres - small) > 8) < 0.01


def test_simulators_share_a_camera_and_not_their_pictures(simulator: Simulator) -> None:
    other = Simulator(camera.open_camera(simulator.renderer).name)  # ty: ignore[invalid-argument-type]
    first = simulator.reset(1)["camera"]
    kept = first.copy()
    other.reset(2)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(simulator.observe()["camera"], kept)


def test_auto_takes_rays_where_there_is_no_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr(camera, "GLCamera", broken)
    camera._open.cache_clear()
    try:
        assert Simulator("auto").renderer == "rays"
        with pytest.raises(BadInput, match=r"found none \(no display\); type renderer=rays"):
            camera.open_camera("gl")
        with pytest.raises(BadInput, match="expected one of auto, gl, rays, found 'vulkan'"):
            camera.open_camera("vulkan")  # ty: ignore[invalid-argument-type]
    finally:
        camera._open.cache_clear()


def test_without_mujoco_the_message_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[control\]'"):
        camera.load_mujoco.__wrapped__()
