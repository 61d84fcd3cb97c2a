"""Every kind of picture arrives as the upright RGB a person sees; what is none is refused with a reason."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from models.encoded_pictures import admit, decode, resize
from models.photographs import normalise
from models.picture_formats import FORMATS, MAX_PIXELS, Fit, Interpolation


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> Image.Image:
    return Image.fromarray(decode(data))


def scene() -> Image.Image:
    """A red half over a blue one, 16x8: upright or not can be told."""
    image = Image.new("RGB", (16, 8), (200, 30, 30))
    image.paste((30, 30, 200), (0, 4, 16, 8))
    return image


def near(image: Image.Image, colour: tuple[int, int, int], at: tuple[int, int], slack: int = 12) -> bool:
    pixel = image.getpixel(at)
    assert isinstance(pixel, tuple)
    return all(abs(got - want) <= slack for got, want in zip(pixel, colour, strict=True))


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("BMP", {}),
        ("GIF", {}),
        ("TIFF", {}),
    ],
)
def test_formats(form: str, options: dict[str, object]) -> None:
    image = decoded(encoded(scene(), form, **options))
    assert (image.mode, image.size) == ("RGB", (16, 8))
    assert near(image, (200, 30, 30), (8, 1)) and near(image, (30, 30, 200), (8, 6))


def test_grey_and_palette() -> None:
    grey = decoded(encoded(Image.new("L", (4, 4), 77), "PNG"))
    assert grey.getpixel((0, 0)) == (77, 77, 77)
    palette = decoded(encoded(scene().quantize(4), "PNG"))
    assert near(palette, (200, 30, 30), (8, 1))
    two = decoded(encoded(Image.new("1", (4, 4), 1), "PNG"))
    assert two.getpixel((0, 0)) == (255, 255, 255)


def test_transparency_lies_over_white() -> None:
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert near(decoded(encoded(half, "PNG")), (127, 127, 127), (1, 1), 2)
    clear = Image.new("LA", (4, 4), (0, 0))
    assert decoded(encoded(clear, "PNG")).getpixel((1, 1)) == (255, 255, 255)
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert decoded(encoded(palette, "PNG", transparency=0)).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize(
    "options", [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}, {"quality": 30}]
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpegs_have_pillows_pixels(mode: str, options: dict[str, object]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise).convert(mode), "JPEG", **options)
    true = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data), true)


def test_cmyk() -> None:
    image = decoded(encoded(scene().convert("CMYK"), "JPEG", quality=95))
    assert image.mode == "RGB"
    assert near(image, (200, 30, 30), (8, 1), 30)


def test_sixteen_bit_grey_keeps_its_range() -> None:
    values = np.array([[0, 16384], [32768, 65535]], dtype=np.uint16)
    image = decoded(encoded(Image.fromarray(values), "PNG"))
    assert [image.getpixel((x, y))[0] for y in (0, 1) for x in (0, 1)] == [0, 64, 128, 255]  # type: ignore[index]


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_grey_of_any_depth_is_scaled_by_the_bits_that_it_uses(bits: int, form: str) -> None:
    eight = np.arange(256, dtype=np.uint8).reshape(16, 16)
    values = np.round(eight / 255 * (2**bits - 1)).astype(np.uint16)
    assert np.array_equal(decode(encoded(Image.fromarray(values), form))[..., 0], eight)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_a_picture_of_16_bits_is_turned_upright(form: str) -> None:
    values = np.arange(16 * 8, dtype=np.uint16).reshape(16, 8) * 500
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored picture is turned by a quarter clockwise
    pixels = decode(encoded(Image.fromarray(values), form, exif=exif))
    assert np.array_equal(pixels, np.rot90(decode(encoded(Image.fromarray(values), form)), -1))


def test_a_tiff_of_16_bits_whose_0_is_white_is_inverted() -> None:
    values = np.arange(256, dtype=np.uint16).reshape(16, 16)
    pixels = decode(encoded(Image.fromarray(values), "TIFF", tiffinfo={262: 0}))[..., 0]
    assert np.array_equal(pixels, 255 - values)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 1, 256, dtype=np.float32),
        np.linspace(0, 255, 256, dtype=np.float32),
        np.linspace(0, 4095, 256, dtype=np.float32),
        np.linspace(0, 1e6, 256).astype(np.int32),
        np.linspace(-1024, 3071, 256).astype(np.int32),
        np.linspace(-1, 1, 256, dtype=np.float32),
    ],
)
def test_whole_numbers_and_floats_keep_all_levels(values: np.ndarray) -> None:
    pixels = decode(encoded(Image.fromarray(values.reshape(16, 16)), "TIFF"))[..., 0].reshape(-1).astype(int)
    assert np.abs(pixels - np.arange(256)).max() <= 1


def test_values_that_are_no_numbers_are_black() -> None:
    values = np.full((16, 16), 0.5, np.float32)
    values[0, 0], values[0, 1] = np.nan, 1.0
    pixels = decode(encoded(Image.fromarray(values), "TIFF"))[..., 0]
    assert pixels[0, :3].tolist() == [0, 255, 128]
    assert decode(encoded(Image.fromarray(np.full((16, 16), np.nan, np.float32)), "TIFF")).max() == 0


def sixteen_bit_png(values: np.ndarray) -> bytes:
    """Return colours (H, W, 3 or 4) uint16 as a PNG of 16 bits, which Pillow cannot write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_colours_of_any_depth_are_scaled_by_the_bits_that_they_use(bits: int, channels: int) -> None:
    eight = np.arange(256 * channels, dtype=np.int64).reshape(16, 16, channels) % 256
    eight[..., 3:] = 255
    values = np.round(eight / 255 * (2**bits - 1)).astype(np.uint16)
    assert np.array_equal(decode(sixteen_bit_png(values)), eight[..., :3])


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_jpeg_with_an_end_marker_is_refused(mode: str, progressive: bool) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8))
    data = encoded(noise.convert(mode), "JPEG", progressive=progressive)
    with pytest.raises(ValueError, match="premature end"):
        decode(data[: len(data) // 2] + b"\xff\xd9")
    assert np.array_equal(decode(data[:-2] + bytes(9) + b"\xff\xd9"), decode(data))  # unused bytes do no harm


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_exif_orientation_is_applied(orientation: int, form: str) -> None:
    turned = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose that EXIF asks to undo
    stored = scene()
    if orientation > 1:
        undo = {0: 0, 1: 1, 3: 3, 5: 5, 6: 6, 2: 4, 4: 2}
        method = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[orientation]
        stored = scene().transpose(Image.Transpose(undo[method]))
        assert orientation in turned
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decoded(encoded(stored, form, exif=exif))
    assert upright.size == (16, 8)
    assert near(upright, (200, 30, 30), (8, 1)) and near(upright, (30, 30, 200), (8, 6))


@pytest.mark.parametrize(("form", "options"), [("JPEG", {"dpi": (72, 72)}), ("JPEG", {}), ("PNG", {}), ("WEBP", {})])
def test_broken_exif_hides_no_picture(form: str, options: dict[str, object]) -> None:
    broken = encoded(scene(), form, exif=b"Exif\0\0" + bytes(64), **options)
    assert np.array_equal(decode(broken), decode(encoded(scene(), form, **options)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"hello, I am text", "no picture of a known format"),
        (encoded(scene(), "JPEG")[:200], "cannot be decoded|no picture"),
        (encoded(scene().resize((200, 100)), "PNG")[:-40], "cannot be decoded"),
    ],
)
def test_files_that_are_no_pictures_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(data)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    big = Image.new("1", (12_000, MAX_PIXELS // 12_000 + 1))
    with pytest.raises(ValueError, match="over the limit"):
        decode(encoded(big, "PNG"))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (40, 64), (97, 101), (300, 100)])
def test_resize_gives_pillows_pixels(shape: tuple[int, int], interpolation: Interpolation) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    image = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1))
    side = min(shape)
    left, top = (shape[1] - side) // 2, (shape[0] - side) // 2
    shown_by: dict[Fit, Image.Image] = {"squash": image, "crop": image.crop((left, top, left + side, top + side))}
    for fit, shown in shown_by.items():
        true = np.asarray(shown.resize((112, 112), Image.Resampling[interpolation.upper()]))
        assert np.array_equal(resize(np.asarray(image), 112, fit, interpolation), true)


def test_resize_and_normalise() -> None:
    squashed, cropped = (resize(np.zeros((16, 8, 3), np.uint8), 8, fit) for fit in ("squash", "crop"))
    assert squashed.shape == cropped.shape == (8, 8, 3)
    assert squashed.dtype == np.uint8
    white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    expected = torch.tensor([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(normalise(white)[0, :, 0, 0], expected)


@pytest.mark.parametrize(
    "slow",
    [
        encoded(scene(), "JPEG")[:2] + b"\xff" * 2**20 + encoded(scene(), "JPEG")[2:],
        encoded(scene(), "JPEG")[:2] + b"\xff\xfe\0\2" + bytes(2**20) + encoded(scene(), "JPEG")[2:],
        encoded(scene(), "JPEG")[:2] + b"\xff\xfe\0\2" * 2**18 + encoded(scene(), "JPEG")[2:],
        encoded(scene(), "PNG")[:33] + struct.pack(">I4sI", 0, b"teXt", zlib.crc32(b"teXt")) * 2**17,
    ],
    ids=["padding", "junk", "comments", "chunks"],
)
def test_headers_made_to_be_slow_are_not_admitted(slow: bytes) -> None:
    with pytest.raises(ValueError, match="has a longer header than any photograph"):
        admit(slow)


@pytest.mark.parametrize("form", FORMATS)
def test_photographs_are_admitted(form: str) -> None:
    assert admit(encoded(scene(), form)) == scene().width * scene().height
