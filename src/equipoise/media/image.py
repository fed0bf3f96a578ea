"""Images in, bytes out."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from equipoise.media.container import LARGEST_PICTURE
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

# Those whose decoders do nothing but decode: for PostScript, Pillow would start an interpreter.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
MODES = {1: "L", 3: "RGB"}


def read_image(path: str | Path, size: int | tuple[int, int] | None = None, channels: int = 3) -> np.ndarray:
    """Read an image.

    Args:
        path: png, jpg, bmp, gif (its first picture), ppm or webp; turned as its camera says.
        size: Of each side, or height and width, after resizing (bilinear with antialiasing; the aspect ratio is not
            kept); None leaves it as it is.
        channels: 3 for red, green, blue; 1 for grey. Of pixels of 16 bits the upper 8 are kept.

    Returns:
        uint8 [channels, height, width].

    Raises:
        Unreadable: If it is broken, cut short, of another format, or larger than 8192 × 8192.
    """
    if channels not in MODES:
        raise ValueError(f"expected 1 or 3 channels, found {channels}")
    with reading(path) as path, warnings.catch_warnings():
        from PIL import Image, ImageOps, UnidentifiedImageError

        warnings.simplefilter("ignore")  # what Pillow thinks of metadata and sizes: both are dealt with here
        try:
            image = Image.open(path, formats=FORMATS)
        except UnidentifiedImageError:
            raise Unreadable(f"{path}: not an image in one of the formats {', '.join(FORMATS)}") from None
        with image:
            if image.width * image.height > LARGEST_PICTURE:
                raise Unreadable(f"{path}: {image.width} × {image.height}, larger than 8192 × 8192")
            picture = ImageOps.exif_transpose(image)
            if picture.mode == "F":
                raise Unreadable(f"{path}: its pixels are real numbers, which only .npy keeps")
            if picture.mode.startswith("I"):  # 16 bits per pixel
                picture = Image.fromarray((np.asarray(picture).clip(0, 2**16 - 1) >> 8).astype(np.uint8))
            picture = picture.convert(MODES[channels])
            if size is not None:
                height, width = (size, size) if isinstance(size, int) else size
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.array(picture)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)) if channels == 3 else pixels[None]
