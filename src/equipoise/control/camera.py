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

from equipoise.control.scene import MODEL, PICTURE
from equipoise.util.errors import BadInput, first_line

Renderer = Literal["auto", "gl", "rays"]
NEAR, DARKENING = 0.25, 3.0  # m, and the share of a colour that rays lose for each metre beyond
_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}


@functools.cache
def load_mujoco() -> Any:
    """Import MuJoCo, set up to draw without a screen unless the user has chosen how.

    Raises:
        ModuleNotFoundError: If it is not installed; says what to type.
    """
    if platform.system() == "Linux":
        os.environ.setdefault("MUJOCO_GL", _backend())
    try:
        import mujoco
    except ModuleNotFoundError as missing:
        msg = f"the simulator needs {missing.name}, which is not installed; type: pip install 'equipoise[control]'"
        raise ModuleNotFoundError(msg, name=missing.name) from None
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
    """Draws by casting one ray a pixel: the colour of what it hits, darker the further away that is."""

    name = "rays"

    def __init__(self, width: int, height: int) -> None:
        mujoco, self._model, self._cast = load_mujoco(), load_model(), load_mujoco().mj_multiRay
        self._shape, count = (height, width, 3), height * width
        # Later versions take room for normals before the number of rays and the furthest distance.
        self._rest = (None, count, 1.0) if "normal:" in self._cast.__doc__ else (count, 1.0)
        down = np.tan(np.radians(self._model.cam_fovy[0]) / 2)
        rows, columns = np.mgrid[:height, :width] + 0.5
        x, y = (2 * columns - width) / height * down, (1 - 2 * rows / height) * down
        local = np.stack([x, y, -np.ones_like(x)], -1).reshape(count, 3)
        data = mujoco.MjData(self._model)
        mujoco.mj_forward(self._model, data)
        self._centre = data.cam_xpos[0].copy()
        rays = local @ data.cam_xmat[0].reshape(3, 3).T
        self._rays = (rays / np.linalg.norm(rays, axis=1, keepdims=True)).reshape(-1)
        self._geoms, self._distances = np.zeros(count, np.int32), np.zeros(count)
        self._colours = np.vstack([self._model.geom_rgba[:, :3], np.ones(3)]).astype(np.float32)  # the last: no geom

    def draw(self, data: Any) -> np.ndarray:
        """Return the picture of a state as uint8 [height, width, 3]."""
        geoms, distances = self._geoms, self._distances
        self._cast(self._model, data, self._centre, self._rays, None, True, -1, geoms, distances, *self._rest)
        shade = np.clip(1.0 - DARKENING * (distances - NEAR), 0.0, 1.0).astype(np.float32)
        return (self._colours[geoms] * (shade * 255)[:, None]).astype(np.uint8).reshape(self._shape)


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
