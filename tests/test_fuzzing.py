"""Every reader of outside input returns a value or refuses in one line, whatever it is given: see tests/fuzzing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from tasks.common.errors import AttendError
from tests.fuzzing import BY_NAME, READERS, Finding, Reader, Refusal, encoded, feed, in_hdf5, in_jsonl, pictured

_EXAMPLES = 20  # for each reader: `bench/soak/fuzz.py` takes many more


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_a_reader_returns_a_value_or_refuses_in_one_line(reader: Reader) -> None:
    def law(value: Any) -> None:
        feed(reader, value)

    checked = given(reader.inputs)(law)
    for value in reader.found:
        checked = example(value)(checked)
    settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(checked)()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "config",
            {"config.yaml": b"preset: demo\ncaptions:\n  a: 1\n  a: 2\n"},
            r"yaml: line 4: a is set already in line 3",
        ),
        ("config", {"config.yaml": b"data: {seed: 1_0}"}, r"line 1: 1_0 is not a number in plain digits"),
        ("config", {"config.yaml": b"data: {seed: 010}"}, r"line 1: 010 is not a number"),
        ("config", {"config.yaml": b"data: {seed: 1:30}"}, r"line 1: 1:30 is not a number"),
        (
            "config",
            {"config.yaml": b'preset: demo\ndata: {seed: "1_0"}'},
            r"data.*: seed: is not a number in plain digits",
        ),
        ("config", {"config.yaml": b"a: " + b"[" * 5_000}, r"config.yaml: is nested too deeply"),
        ("overrides", ["training.epochs=1_0"], r"training.epochs=1_0: line 1: 1_0 is not a number"),
        ("overrides", ["training={epochs: 1, epochs: 2}"], r"epochs is set already"),
        ("overrides", ["training.epochs=٣"], r"training.epochs: "),
        ("port", "1_0", "'1_0' is not a whole number"),
        ("port", "٣", "is not a whole number"),
        ("port", "70000", "70000 is not in the range 1<=x<=65535"),
        (
            "flickr30k",
            {"results_20130124.token": "a.jpg#²\tx".encode()},
            r"token:1: picture: 'a.jpg#²' does not end in #K",
        ),
        ("jsonl", in_jsonl(b'"\\ud800"'), r"jsonl:1: .*the picture's name holds half a surrogate pair \(\\ud800\)"),
        ("jsonl", in_jsonl(b'"' + b"a" * 5_000 + b'"'), r"jsonl:1: .*name is too long: a file's name has 255 bytes"),
        ("jsonl", in_jsonl(b"[" * 200_000), r"metadata.jsonl:1: is JSON nested too deeply"),
        (
            "jsonl",
            {**in_jsonl(b'"x.png"', b"b" * 1_000_000), "x.png": encoded()},
            r"jsonl:1: caption: has 1,000,000 characters, over the limit",
        ),
        ("huggingface", pictured("/etc/passwd"), r"row 0: image: /etc/passwd: lies outside the data set"),
        ("huggingface", pictured("../x"), r"row 0: image: ../x: lies outside the data set"),
        ("hdf5", in_hdf5("link"), r"grids.h5: "),
        ("hdf5", in_hdf5("external"), r"grids.h5: grids: refers to another file"),
        ("hdf5", in_hdf5("virtual"), r"grids.h5: grids: refers to another file"),
        ("hdf5", in_hdf5("linked ids"), r"ids: refers to another file"),
        ("request", ("application/json", b'{"inputs": ["QUJD"], "params": {"n_best": "1_0"}}'), "n_best: is no number"),
    ],
)
def test_inputs_that_were_once_accepted_by_mistake_are_refused(
    tmp_path: Path, name: str, value: Any, message: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AttendError, Refusal), match=message):
        BY_NAME[name].read(value, tmp_path)


def test_a_picture_within_a_hugging_face_folder_is_read(tmp_path: Path) -> None:
    """A row may name a picture by its path in the folder."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"\x89PNG")
    BY_NAME["huggingface"].read(pictured("photos/a.png"), tmp_path)
    assert [path.read_bytes() for path in (tmp_path / "generated").iterdir()] == [b"\x89PNG"]


@pytest.mark.parametrize("error", [KeyError("x"), AttendError("no field"), AttendError("fuzz-"), RecursionError()])
def test_the_law_finds_what_breaks_it(error: Exception) -> None:
    def read(_: object, folder: Path) -> None:
        raise error

    with pytest.raises(Finding):
        feed(Reader("planted", READERS[0].inputs, read), {})
