"""The picture files that are read, which configs and checks name without loading torch."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000
