"""The picture files that are read and how pictures are resized, which configs and checks name without loading torch."""

from typing import Literal

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000
Fit = Literal["squash", "crop"]
Interpolation = Literal["bilinear", "bicubic"]
