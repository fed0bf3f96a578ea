"""Pictures of the scene, with OpenGL where there is some and by casting rays where there is none."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Literal, final, get_args

import numpy as np

from equipoise.control.scene import MODEL, MOVING, PICTURE
from equipoise.util.errors import BadInput, first_line
from equipoise.util.extras import needs

Renderer = Literal["auto", "gl", "rays"]
NEAR, DARKENING = 0.25, 3.0  # m, and the share of a colour that rays lose for each metre beyond
KEPT = 64  # pictures of the plate: more than the simulators of a process
_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}


@functools.cache
def load_mujoco() -> Any:
    """Import MuJoCo, set up to draw without a screen unless the user has chosen how.

    Raises:
        NotInstalled: If it is not installed; says what to type.
    """
    if platform.system() == "Linux":
        os.environ.setdefault("MUJOCO_GL", _backend())
    with needs("the simulator", "control"):
        import mujoco
    return mujoco


def _backend() -> str:
    """Return what draws without a screen; importing MuJoCo with a backend whose library is missing fails."""
    for name, libraries in _LIBRARIES.items():
        for library in libraries:
            with suppress(OSError):
                ctypes.CDLL(library)
                return name
    return "disable"


@functools.cache
def load_model() -> Any:
    """Compile the scene, once in a process."""
    return load_mujoco().MjModel.from_xml_string(MODEL)


class Camera(ABC):
    """Draws the scene as seen by its fixed camera."""

    name: Renderer

    @abstractmethod
    def draw(self, data: Any) -> np.ndarray:
        """Return the picture of a state as uint8 [height, width, 3]."""


@final
class GLCamera(Camera):
    """Draws with OpenGL."""

    name = "gl"

    def __init__(self, width: int, height: int) -> None:
        self._renderer = load_mujoco().Renderer(load_model(), height, width, max_geom=50)

    def draw(self, data: Any) -> np.ndarray:
        """Return the picture of a state as uint8 [height, width, 3]."""
        self._renderer.update_scene(data, camera="camera")
        return self._renderer.render()


@final
class RayCamera(Camera):
    """Draws by casting one ray a pixel: the colour of what it hits, darker the further away that is.

    The plate is drawn once for each place of the hole; then only rays near what moves are cast.
    """

    name = "rays"

    def __init__(self, width: int, height: int) -> None:
        mujoco, self._model, self._cast = load_mujoco(), load_model(), load_mujoco().mj_multiRay
        # Later versions take room for normals before the number of rays and the furthest distance.
        self._normals = (None,) if "normal:" in self._cast.__doc__ else ()
        self._down = np.tan(np.radians(self._model.cam_fovy[0]) / 2)
        rows, columns = np.mgrid[:height, :width] + 0.5
        x, y = (2 * columns - width) / height * self._down, (1 - 2 * rows / height) * self._down
        local = np.stack([x, y, -np.ones_like(x)], -1)
        data = mujoco.MjData(self._model)
        mujoco.mj_forward(self._model, data)
        self._centre, self._turn = data.cam_xpos[0].copy(), data.cam_xmat[0].reshape(3, 3).copy()
        rays = local @ self._turn.T
        self._rays = rays / np.linalg.norm(rays, axis=2, keepdims=True)
        groups = self._model.geom_group
        self._moving = np.flatnonzero(groups == MOVING)
        self._still = np.array([group != MOVING for group in range(mujoco.mjNGROUP)], np.uint8)
        self._colours = np.vstack([self._model.geom_rgba[:, :3], np.ones(3)]).astype(np.float32)  # the last: no geom
        self._backgrounds: dict[bytes, np.ndarray] = {}

    def draw(self, data: Any) -> np.ndarray:
        """Return the picture of a state as uint8 [height, width, 3]."""
        picture, (rows, columns) = self._background(data).copy(), self._near_moving(data)
        if (rays := self._rays[rows, columns]).size:
            picture[rows, columns] = self._seen(data, rays, None)
        return picture

    def _background(self, data: Any) -> np.ndarray:
        """Return the picture of what does not move; those of the newest places of the hole are kept."""
        place = data.mocap_pos.tobytes()
        if place not in self._backgrounds:
            if len(self._backgrounds) == KEPT:
                del self._backgrounds[next(iter(self._backgrounds))]
            self._backgrounds[place] = self._seen(data, self._rays, self._still)
        return self._backgrounds[place]

    def _seen(self, data: Any, rays: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
        """Cast rays [rows, columns, 3] at geoms of some groups, and return the colours that they see."""
        shape = rays.shape[:2]
        geoms, distances = np.zeros(shape, np.int32), np.zeros(shape)
        rest = (*self._normals, geoms.size, 1.0)
        rays = np.ascontiguousarray(rays).reshape(-1)
        self._cast(self._model, data, self._centre, rays, groups, True, -1, geoms.ravel(), distances.ravel(), *rest)
        shade = np.clip(1.0 - DARKENING * (distances - NEAR), 0.0, 1.0).astype(np.float32)
        return (self._colours[geoms] * (shade * 255)[..., None]).astype(np.uint8)

    def _near_moving(self, data: Any) -> tuple[slice, slice]:
        """Return the rows and columns of a rectangle that holds all that moves, with a pixel to spare."""
        height, width = self._rays.shape[:2]
        corners = data.geom_xpos[self._moving, None] + _CORNERS * self._model.geom_size[self._moving, None]
        local = (corners.reshape(-1, 3) - self._centre) @ self._turn
        x, y = (local[:, :2] / -local[:, 2:] / self._down * height / 2).T
        column, row = x + width / 2, height / 2 - y
        bounds = [(int(edge.min()) - 1, int(edge.max()) + 2) for edge in (row, column)]
        rows, columns = (slice(max(0, first), max(0, last)) for first, last in bounds)
        return rows, columns


_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)


def open_camera(renderer: Renderer = "auto", width: int = PICTURE, height: int = PICTURE) -> Camera:
    """Return a camera of this process; all simulators in it share one of each kind and size.

    Args:
        renderer: "gl", "rays", or "auto": "gl" where it can be made, else "rays".
        width: In pixels.
        height: In pixels.

    Raises:
        BadInput: If the renderer is unknown, or "gl" cannot be made here.
    """
    if renderer not in get_args(Renderer):
        raise BadInput(f"renderer: expected one of {', '.join(get_args(Renderer))}, found {renderer!r}")
    if renderer != "auto":
        return _open(renderer, width, height, os.getpid())
    try:
        return _open("gl", width, height, os.getpid())
    except BadInput:
        return _open("rays", width, height, os.getpid())


@functools.cache
def _open(renderer: Renderer, width: int, height: int, process: int) -> Camera:  # noqa: ARG001 (a fork needs its own)
    if renderer == "rays":
        return RayCamera(width, height)
    try:
        return GLCamera(width, height)
    except Exception as problem:  # OpenGL's libraries raise whatever they like
        reason = first_line(problem)
        msg = f"renderer=gl: expected OpenGL through EGL or OSMesa, found none ({reason}); type renderer=rays"
        raise BadInput(msg) from problem
