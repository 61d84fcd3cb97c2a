"""The captioner that training starts from (`training.start_from`), and the settings that a config takes from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError
from tasks.config.machine import MachineConfig
from tasks.config.presets import CAPTIONER, CHAMPION, merged, resolve_preset

VOCABULARY, MEMORY = "vocabulary.json", "memory.npz"
_FIELD = "training.start_from"
_OF_GRIDS = ("image_size", "fit", "layer", "grid", "precision")
_OF_CAPTIONS = ("tokeniser", "units", "max_tokens")
_REMEDY = "leave it out, because training starts from that captioner"


@dataclass(frozen=True)
class StartingPoint:
    """A captioner on this machine.

    address: `models:/NAME/VERSION`, or a folder or URL, for display. folder: its bundle for torch. digest: of all its
    files.
    """

    address: str
    folder: Path
    digest: str

    def config(self) -> dict[str, Any]:
        """Return its saved config (see models/captioner.py)."""
        saved: dict[str, Any] = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return saved

    def origin(self) -> dict[str, Any]:
        """Return what a captioner trained from this one records: address, digest, and this one's starting point."""
        return {"address": self.address, "digest": self.digest, "started_from": self.config().get("started_from")}

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the settings of `grids`, `decoder` and `captions` that it was trained with.

        `grids` is empty for a captioner that takes grids.
        """
        saved = self.config()
        backbone, decoder = saved["backbone"], saved["decoder"]
        grids: dict[str, Any] = {}
        if "shape" not in backbone:
            grids = {name: backbone.get(name) for name in _OF_GRIDS}
            grids |= {"backbone": backbone["name"], "weights": f"{CAPTIONER}{self.folder}"}
        words = json.loads((self.folder / VOCABULARY).read_text(encoding="utf-8"))["settings"]
        return {
            "grids": grids,
            "decoder": {"name": decoder["name"], "members": decoder.get("members", 1), **decoder["options"]},
            "captions": {name: words[name] for name in _OF_CAPTIONS if name in words},
        }


# (training.start_from, training.start_store, the workspace's folder) -> the captioner
Find = Callable[[str, str | None, Path], StartingPoint]


def with_starting_point(values: dict[str, Any], find: Find) -> dict[str, Any]:
    """Return a config's values with those of the captioner that training starts from, if it names one.

    They replace those of the config's `preset`. Raises AttendError if the config's own values contradict them.
    """
    try:
        resolved = resolve_preset(values)
    except ValueError:
        return values  # validation refuses them
    training = resolved.get("training")
    training = training if isinstance(training, dict) else {}
    address = training.get("start_from")
    if not isinstance(address, str) or address == CHAMPION:
        return values
    machine = resolved.get("machine")
    folder = MachineConfig.model_validate(machine if isinstance(machine, dict) else {}).folder
    point = find(address, training.get("start_store"), folder)
    sections = point.sections()
    own = {name: values[name] if isinstance(values.get(name), dict) else {} for name in sections}
    _check_own(own, sections, point.address)
    return {
        **resolved,
        "grids": {**sections["grids"], **own["grids"]},
        "decoder": {**sections["decoder"], **own["decoder"]},
        "captions": {**merged(resolved.get("captions") or {}, sections["captions"]), **own["captions"]},
        "starting_point": point,
    }


def _check_own(own: Mapping[str, Mapping[str, Any]], sections: Mapping[str, Mapping[str, Any]], address: str) -> None:
    """Raise AttendError if a value of the config differs from that of the captioner at an address."""
    for section, theirs in sections.items():
        for name, value in theirs.items():
            may_differ = name == "max_tokens" or name.startswith("dropout_")
            may_differ |= name == "members" and own[section].get(name) == 1
            if name in own[section] and own[section][name] != value and not may_differ:
                shown = "its own" if name == "weights" else value
                raise AttendError(
                    f"{section}.{name}: {address} has {shown}, this config {own[section][name]}: {_REMEDY}"
                )
