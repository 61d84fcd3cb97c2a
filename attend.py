"""Image captioning in Python: load a captioner and caption photographs, or train one from a config.

    import attend

    captioner = attend.load("models:/photos@champion")
    print(captioner("photo.jpg").caption)

Errors that a user can fix are `AttendError`, whose message is one line.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from PIL import Image

    from models.captioned import Captioned
    from models.options import Runtime

__all__ = ["AttendError", "Captioner", "RunResult", "StageStatus", "load", "run", "status"]

_BATCH = 64  # pictures in memory at once
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA"}
_DEEP_MODES = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}  # more than 8 bits: scaled by the range of their values

Picture: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image"


class Captioner:
    """A captioner that takes photographs. Calls have no side effects, so threads may share it.

    address: the loaded version, `models:/NAME/VERSION`, or the exported folder with its digest.
    """

    def __init__(self, address: str, captioner: Any) -> None:
        self.address = address
        self._captioner = captioner

    @overload
    def __call__(self, pictures: Picture, **options: Any) -> Captioned: ...

    @overload
    def __call__(self, pictures: Iterable[Picture], **options: Any) -> list[Captioned]: ...

    def __call__(self, pictures: Picture | Iterable[Picture], **options: Any) -> Captioned | list[Captioned]:
        """Caption a photograph, or each photograph of an iterable.

        pictures: a path, the bytes of a file (JPEG, PNG, WebP, ...), or a Pillow image; or an iterable of these.
        options: `n_best=3` for alternatives, `attention=True` for the attention map of each word, `explain=True` for
        the training pictures that support the caption, `min_confidence=0.5` with `otherwise="..."`, and the fields of
        `models.options.Decoding` (`beam`, `max_length`, ...), which replace the model's own.

        Returns a result with `caption`, `confidence` and more: see `models.captioned.Captioned`. If a photograph of an
        iterable cannot be read, its result has the reason as its `error`; a single one raises AttendError.
        Raises AttendError for options that cannot be combined.
        """
        single = isinstance(pictures, (str, os.PathLike, bytes, bytearray)) or _is_image(pictures)
        if not single and not isinstance(pictures, Iterable):
            raise _no_picture(pictures)
        given: Iterable[Any] = [pictures] if single else pictures  # type: ignore[assignment]
        results: list[Captioned] = []
        remaining = iter(given)
        while batch := list(itertools.islice(remaining, _BATCH)):
            results += self._caption(batch, options)
        if not single:
            return results
        if results[0].error is not None:
            name = f"{os.fspath(pictures)}: " if isinstance(pictures, (str, os.PathLike)) else ""
            raise AttendError(f"{name}{results[0].error}")
        return results[0]

    def _caption(self, pictures: Sequence[Any], options: dict[str, Any]) -> list[Captioned]:
        """Return the result of each picture of a batch."""
        contents, unread = [], {}
        for number, picture in enumerate(pictures):
            try:
                contents.append(_encoded(picture))
            except (OSError, ValueError, RuntimeError) as error:  # from paths, and from closed or empty images
                contents.append(b"")
                unread[number] = getattr(error, "strerror", None) or str(error)
        try:
            results: list[Captioned] = self._captioner.caption(contents, **options)
        except (ValueError, TypeError) as error:
            raise AttendError(str(error)) from error
        return [
            replace(result, error=unread[number]) if number in unread else result
            for number, result in enumerate(results)
        ]


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    workspace: str | os.PathLike[str] | None = None,
    runtime: Runtime | None = None,
) -> Captioner:
    """Load a captioner.

    model: `models:/NAME@ALIAS` or `models:/NAME/VERSION` in the MLflow store of the workspace, or a folder written by
    `attend export`. Default: the champion promoted last, or that of `attend models use`. workspace: a folder or URL.
    Default: ATTEND_WORKSPACE, else ./workspace. runtime: `torch`, `onnx`, `onnx-float16` or `onnx-int8`; default: the
    first that the model was registered with. Raises AttendError if there is no such model.
    """
    from tasks.config.machine import MachineConfig
    from tasks.mlflow_store.logged_model import load_captioner
    from tasks.mlflow_store.versions import find_captioner

    machine = MachineConfig() if workspace is None else MachineConfig(workspace=os.fspath(workspace))
    found = find_captioner(None if model is None else os.fspath(model), machine.folder)
    return Captioner(found.address, load_captioner(*found, runtime))


@dataclass(frozen=True)
class StageStatus:
    """The state of a stage: `fresh`, `stale`, `missing`, `damaged`, `interrupted` or `running`, and the reasons."""

    stage: str
    state: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    ran: the stages that ran. scores: by metric; empty before `evaluate`. version: `models:/NAME/VERSION`; None before
    `register`. decision: why it is champion or not.
    """

    ran: tuple[str, ...]
    scores: dict[str, float]
    version: str | None
    decision: str | None


def run(config: str | os.PathLike[str], *overrides: str, until: str = "register") -> RunResult:
    """Bring a captioner up to date: run the stale stages, and no others, as `attend run` does.

    config: a YAML file or the name of a preset. overrides: settings such as `training.epochs=5`. until: the last stage
    to run. Raises AttendError for an invalid config, or if a stage fails; finished work is kept.
    """
    from flows.configs import load as load_config
    from flows.operations.local_run import run as run_stages
    from flows.planned_run import planned_run
    from tasks.evaluation.score_record import read_scores
    from tasks.mlflow_store.registration_record import read_registration

    settings = load_config(os.fspath(config), overrides)
    with planned_run(settings, until, alone=True) as plan:
        if not plan.fresh:
            run_stages(settings, plan, os.fspath(config), list(overrides), quiet=True)
    made = plan.by_kind
    registered = read_registration(made["register"].path) if "register" in made else None
    return RunResult(
        tuple(plan.ran),
        read_scores(made["evaluate"].path)["scores"] if "evaluate" in made else {},
        None if registered is None else registered["uri"],
        None if registered is None else registered["why"],
    )


def status(config: str | os.PathLike[str], *overrides: str, until: str = "register") -> list[StageStatus]:
    """Return what `run` would do, and why, without running anything. Arguments and errors are those of `run`."""
    from flows.configs import load as load_config
    from flows.pipeline import build_pipeline
    from tasks.pipeline.plan import Plan

    statuses = Plan(build_pipeline(load_config(os.fspath(config), overrides)), until).update().with_running()
    return [StageStatus(item.stage.name, item.state, tuple(item.why)) for item in statuses]


def _no_picture(value: object) -> AttendError:
    return AttendError(f"{type(value).__name__}: give a path, bytes, an image of Pillow, or a list of these")


def _is_image(value: object) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def _encoded(picture: Any) -> bytes:
    """Return the bytes of a picture's file; a Pillow image becomes a PNG, upright.

    Raises OSError if a file cannot be read, and AttendError for any other type.
    """
    if isinstance(picture, bytes | bytearray):
        return bytes(picture)
    if isinstance(picture, (str, os.PathLike)):
        return Path(picture).expanduser().read_bytes()
    if not _is_image(picture):
        raise _no_picture(picture)
    import numpy as np
    from PIL import Image, ImageOps

    from models.deep_pixels import to_8_bits

    image = ImageOps.exif_transpose(picture)
    if image.mode in _DEEP_MODES:
        image = Image.fromarray(to_8_bits(np.asarray(image)))
    out = io.BytesIO()
    (image if image.mode in _PNG_MODES else image.convert("RGB")).save(out, "PNG", compress_level=1)
    return out.getvalue()
