"""The config of a run: one frozen section per stage.

A section holds only what changes the results of its stage. The location of the pictures, the device and the number of
workers change no result: such fields are marked `NotInKey()` or belong to the section `machine`, and never enter a
stage's key.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, InstanceOf, TypeAdapter, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from models.backbones import BACKBONES
from models.decoders import DECODERS
from tasks.common.errors import AttendError, suggestion
from tasks.common.section import Checked
from tasks.config.decoder import DecoderConfig
from tasks.config.machine import MachineConfig
from tasks.config.presets import CHAMPION, resolve_preset, values_of
from tasks.config.stages import (
    CaptionsConfig,
    EncoderConfig,
    EvaluationConfig,
    GridsConfig,
    MemoryConfig,
    RegistryConfig,
)
from tasks.config.starting_point import Find, StartingPoint, with_starting_point
from tasks.config.training import SelfCriticalConfig, TrainingConfig, TuningConfig
from tasks.datasets import ADAPTERS, Dataset
from tasks.datasets.base import DatasetOptions
from tasks.metrics import METRICS

_DATASET: TypeAdapter[DatasetOptions] = TypeAdapter(Dataset)
_DESPITE_CONTRADICTIONS = "despite contradictions"  # a validation context


class ContradictionError(ValueError):
    """An error for sections of a config that contradict each other, with one message per contradiction."""

    def __init__(self, contradictions: list[str]) -> None:
        super().__init__("; ".join(contradictions))
        self.contradictions = contradictions


class Config(Checked):
    """Everything that a run depends on."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="name of the run")
    about: str = Field("", description="one line that describes the run")
    source: str = Field("", description="publication that describes the captioner")
    departures: dict[str, str] = Field({}, description="settings in which a preset departs from its source, and why")
    data: Dataset
    grids: GridsConfig
    encoder: EncoderConfig | None = None
    captions: CaptionsConfig = CaptionsConfig()
    decoder: DecoderConfig
    training: TrainingConfig = TrainingConfig()
    tuning: TuningConfig | None = None
    self_critical: SelfCriticalConfig | None = None
    memory: MemoryConfig = MemoryConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    registry: RegistryConfig
    machine: MachineConfig = MachineConfig()
    starting_point: InstanceOf[StartingPoint] | None = Field(None, exclude=True)  # found by `load`; not a setting

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Merge the values over those of their `preset`, and name the registered model after the run."""
        if not isinstance(values, dict):
            return values
        values = resolve_preset(values)
        if "name" in values and isinstance(values.get("registry"), dict | None):
            values["registry"] = {"model": values["name"], **(values.get("registry") or {})}
        training = values.get("training") or {}
        for name, section in (("tuning", TuningConfig), ("self_critical", SelfCriticalConfig)):
            if isinstance(values.get(name), dict) and isinstance(training, dict):
                shared = {field: training[field] for field in section.SHARED if field in training}
                values[name] = {**shared, **values[name]}
        return values

    @model_validator(mode="after")
    def _check_sections(self, info: ValidationInfo) -> Config:
        contradictions = list(self._contradictions())
        if contradictions and info.context != _DESPITE_CONTRADICTIONS:
            raise ContradictionError(contradictions)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction between two sections."""
        for name, section in (("tuning", self.tuning), ("self_critical", self.self_critical)):
            for field in () if section is None else section.SHARED:
                if getattr(section, field) != getattr(self.training, field):
                    yield f"{name}.{field}: is that of training: set training.{field}"
        scores = [score for name in self.evaluation.metrics for score in METRICS[name].scores]
        if self.registry.promote_on not in scores:
            yield (
                f"registry.promote_on: {self.registry.promote_on!r} is not a score of evaluation.metrics, which give: "
                f"{', '.join(scores)}"
            )
        need_facts = [name for name in self.evaluation.metrics if METRICS[name].needs_facts]
        if need_facts and not self.data.has_facts:
            yield (
                f"evaluation.metrics: `{need_facts[0]}` needs facts about each picture, which only `scenes` has: "
                "leave it out, or set data.adapter=scenes"
            )
        if self.tuning is not None and self.decoder.members > 1:
            yield "tuning: one decoder is tuned with the backbone: set decoder.members=1"
        if self.self_critical is not None and self.decoder.name == "hard_attention":
            yield (
                "self_critical: hard_attention draws the positions it attends to in stage `train` alone: "
                "choose another decoder"
            )
        if self.training.doubly_stochastic and not DECODERS[self.decoder.name].attends:
            yield (f"training.doubly_stochastic: decoder {self.decoder.name} has no alphas: set it to 0")
        yield from self._contradictions_of_given_grids()
        if self.tuning is not None and not self.grids.backbone.startswith("timm:"):  # timm itself defines the blocks
            blocks = BACKBONES[self.grids.backbone].blocks if self.grids.backbone in BACKBONES else 0
            if self.tuning.first_block > blocks:
                has = f"has {blocks} blocks" if blocks else "does not say which blocks it has"
                yield (
                    f"tuning.first_block: {self.grids.backbone} {has}: block {self.tuning.first_block} cannot be tuned"
                )
        yield from self._contradictions_of_start()
        if self.evaluation.no_echo and (self.captions.units == "bpe" or self.captions.tokeniser == "characters"):
            yield "evaluation.no_echo: letters and byte pairs may well follow themselves: leave it out"
        yield from self._contradictions_of_data()

    def _contradictions_of_start(self) -> Iterator[str]:
        """Yield contradictions with the starting point of training."""
        if self.tuning is not None and self.training.start_from == CHAMPION:
            yield (
                "training.start_from: a champion whose backbone was fine-tuned is no start for a frozen one: leave "
                "start_from or tuning out"
            )
        if self.training.start_store is not None and not (self.training.start_from or "").startswith("models:/"):
            yield "training.start_store: is for a model of MLflow, as in training.start_from=models:/NAME@champion"
        if self.captions.vocabulary == "joined" and self.starting_point is None:
            yield (
                "captions.vocabulary: there is no vocabulary to join: set training.start_from to a captioner, or "
                "vocabulary=train"
            )
        if self.memory.joined and self.captions.vocabulary != "joined":
            yield "memory.joined: the captions that are kept need their words: set captions.vocabulary=joined"

    def _contradictions_of_data(self) -> Iterator[str]:
        """Yield contradictions within the section of the data set."""
        for field in ("weight", "split"):
            if getattr(self.data, field) != type(self.data).model_fields[field].default:
                yield f"data.{field}: is for the data sets of data.sources: leave it out"
        if self.data.dev_share + self.data.test_share >= 1:
            yield "data.dev_share and data.test_share: together they leave nothing to train on"

    def _contradictions_of_given_grids(self) -> Iterator[str]:
        """Yield contradictions with imported grids."""
        if self.data.has_grids and self.grids.backbone != "imported":
            yield (
                f"data.adapter: {self.data.model_dump()['adapter']} has grids and no photographs: set "
                "grids.backbone=imported and grids.weights=imported:NAME"
            )
        if self.grids.backbone == "imported" and not self.data.has_grids:
            yield "grids.backbone: imported grids come with data.adapter=arrays: set that, or another backbone"
        if self.encoder is not None and self.grids.backbone != "imported":
            yield "encoder: is for imported grids alone; others are made by grids.backbone: leave encoder out"
        if self.encoder is not None and self.encoder.examples is None:
            yield (
                "encoder.examples: name a folder of photographs of some of the grids: else nothing shows that the "
                "encoder makes such"
            )

    @property
    def encoding(self) -> GridsConfig | None:
        """Return how the registered model encodes photographs; None if it takes grids in place of them."""
        if self.grids.backbone != "imported":
            return self.grids
        return None if self.encoder is None else self.encoder.as_grids()

    @property
    def workspace(self) -> Path:
        """Return the workspace's folder on this machine; see `MachineConfig.folder`."""
        return self.machine.folder


def _no_captioner(start_from: str, _store: str | None, _workspace: Path) -> StartingPoint:
    raise AttendError(f"training.start_from: {start_from}: captioners are found by flows/configs.py")


def load(preset_or_file: str, overrides: Sequence[str] = (), find: Find = _no_captioner) -> Config:
    """Return the config of a preset or YAML file with `section.field=value` overrides merged over it.

    find: finds the captioner that training starts from, if the config names one. Raises AttendError for an unknown
    preset, a file that is not a mapping, or an invalid value.
    """
    return validate(with_starting_point(values_of(preset_or_file, overrides), find), preset_or_file)


def validate(values: dict[str, Any], where: str) -> Config:
    """Return the Config of `values`; AttendError names the first invalid field and the closest known one.

    where: the preset or file of the values, for the message.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise AttendError(f"{where}: {'; '.join(_refusal(min(error.errors(), key=_misspelt_first)))}") from None


def refusals(
    preset_or_file: str, overrides: Sequence[str] = (), find: Find = _no_captioner
) -> tuple[list[str], Config | None]:
    """Return all errors of a config, and the config without the invalid fields, or None if that is not possible.

    Invalid fields are left out so that the errors of the others are found too. Raises AttendError for an unknown preset
    and a file that is not a mapping.
    """
    try:
        nested = values_of(preset_or_file, overrides)
        values = resolve_preset(nested)
    except ValueError as error:
        return [str(error)], None
    try:
        values = resolve_preset(with_starting_point(nested, find))
    except AttendError as error:
        return [str(error)], None
    lines: list[str] = []
    removed: set[str] = set()
    while True:
        try:
            Config.model_validate(values)
        except ValidationError as error:
            items = sorted(error.errors(), key=_misspelt_first)
            if not items[0]["loc"]:
                return lines + _refusal(items[0]), Config.model_validate(values, context=_DESPITE_CONTRADICTIONS)
            if all(_field(item) in removed for item in items):  # they cannot be removed
                return lines, None
            for item in items:
                if _field(item) not in removed:  # otherwise it is missing because it was invalid
                    lines += _refusal(item)
                if item["type"] == "missing":
                    return lines, None
                _remove(values, _field(item))
                removed.add(_field(item))
        else:
            return lines, Config.model_validate(values)


def data_section(preset_or_file: str, overrides: Sequence[str] = ()) -> DatasetOptions | None:
    """Return the section `data` of a config whose other sections may be invalid; None if it is invalid itself."""
    try:
        return _DATASET.validate_python(resolve_preset(values_of(preset_or_file, overrides)).get("data"))
    except (ValueError, AttendError):
        return None


def _field(item: ErrorDetails) -> str:
    """Return the dotted name of a field that pydantic refuses, without the adapter in its location."""
    path = [str(part) for part in item["loc"]]
    for index in (1, 3):  # the adapter of `data`, then that of one of data.sources
        if path[:1] == ["data"] and path[index : index + 1] and path[index] in ADAPTERS:
            del path[index]
    return ".".join(path)


def _remove(values: dict[str, Any], field: str) -> None:
    """Remove a field from nested values."""
    *sections, name = field.split(".")
    for section in sections:
        values = values.get(section, {}) if isinstance(values, dict) else {}
    if isinstance(values, dict):
        values.pop(name, None)


def _misspelt_first(item: ErrorDetails) -> bool:
    """Return a sort key that puts unknown fields first: a misspelt field is also missing, and its spelling is why."""
    return item["type"] != "extra_forbidden"


def _refusal(item: ErrorDetails) -> list[str]:
    """Return a line about an invalid field, or one for each contradiction between sections."""
    field = _field(item)
    path = field.split(".")
    contradiction = item.get("ctx", {}).get("error")
    if isinstance(contradiction, ContradictionError):
        return contradiction.contradictions
    if item["type"] == "extra_forbidden":
        sections = ("training", "decoder", "captions", "grids", "evaluation", "registry", "machine")
        elsewhere = [f"{section}.{field}" for section in sections if field in _known_fields([section], ())]
        hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else None
        return [f"{field}: no such setting{hint or suggestion(path[-1], _known_fields(path[:-1], item['loc']))}"]
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = item.get("ctx", {}).get("tag", "")
        other = _OTHER_NAMES.get(str(tag).lower())
        hint = suggestion(str(tag), ADAPTERS) if other is None else f"; did you mean {other!r}?"
        return [f"{field}.adapter: unknown dataset adapter {tag!r}{hint}"]
    if item["type"] == "missing":
        return [f"{field}: is missing"]
    message = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    received = "" if isinstance(item["input"], dict) else f" (given {reprlib.repr(item['input'])})"
    return [f"{field}: {message}{received}" if field else message]


# Other names of adapters.
_OTHER_NAMES = {
    **dict.fromkeys(("csv", "tsv", "parquet", "json"), "table"),
    **dict.fromkeys(("folder", "image_folder", "jsonl", "metadata"), "imagefolder"),
    **dict.fromkeys(("hf", "datasets"), "huggingface"),
    **dict.fromkeys(("wds", "tar"), "webdataset"),
    "flickr": "flickr8k",
    "mscoco": "coco",
}
# In place of pydantic's messages.
_PLAIN = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is no whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "is no number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "is neither true nor false"),
    "string_type": "is no text",
    "dict_type": "is no mapping of names to settings",
    "model_attributes_type": "is no mapping of settings",
}


def _known_fields(path: list[str], location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the fields of the section at `path`; of the config itself if `path` is empty.

    location: pydantic's location of the error, which includes the adapter.
    """
    if not path:
        return list(Config.model_fields)
    if path[0] == "data":
        return [name for part in location if part in ADAPTERS for name in ADAPTERS[str(part)].model_fields]
    if path[0] not in Config.model_fields:  # no section has this name
        return []
    section = section_of(Config.model_fields[path[0]])
    return [] if section is None else list(section.model_fields)


def section_of(field: FieldInfo) -> Any:
    """Return the class of the section that a field of the config holds; None if it holds none."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
