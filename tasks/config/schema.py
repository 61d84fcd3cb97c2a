"""The config of a run: one frozen section a stage.

A section holds only what changes what its stage computes. Where the pictures lie, the device and the
number of workers change nothing that is kept: such fields are marked `NotInKey()` or live in `machine`,
and never enter a stage's key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.backbones import BACKBONES, LIBRARIES
from models.decoders import DECODERS
from models.options import Attentions, FirstStates, Heads, Outputs, Searches
from tasks.common.errors import AttendError, check_known, nearest
from tasks.common.object_storage import Remote, tie
from tasks.common.section import NotInKey, Section
from tasks.config.presets import over_preset, values_of
from tasks.config.tokenisers import TOKENISERS
from tasks.datasets import ADAPTERS, Dataset
from tasks.metrics import METRICS

Split = Literal["train", "dev", "test"]


class GridsConfig(Section):
    """Which grid of which backbone a photograph becomes (stage `extract`)."""

    backbone: str = Field(description="a name of models/backbones, `torchvision:MODEL` or `timm:MODEL`")
    weights: Annotated[str, NotInKey()] = Field(
        description="`torchvision:NAME`, `timm:pretrained`, a .safetensors or .pth file, or `random:SEED`; "
        "its digest is in the key"
    )
    image_size: int = Field(ge=32, le=2048, description="side of the square the photograph is resized to, px")
    fit: Literal["squash", "crop"] = Field(
        "squash", description="squash the whole photograph to the square, or crop its middle"
    )
    grid: int | None = Field(
        None, ge=1, le=64, description="side the grid is average-pooled to; none keeps the backbone's own"
    )
    precision: Literal["float32", "bfloat16"] = "float32"
    max_failed: Annotated[float, NotInKey()] = Field(
        0.01, ge=0, le=1, description="share of unreadable pictures that fails the stage"
    )

    @model_validator(mode="after")
    def _known(self) -> GridsConfig:
        library, colon, name = self.backbone.partition(":")
        if self.backbone == "imported" and (self.grid is not None or self.precision != "float32"):
            raise ValueError("grid and precision are the backbone's: imported grids are taken as they are")
        if self.backbone != "imported" and not (colon and name and library in LIBRARIES):
            check_known(self.backbone, "backbone", BACKBONES)
        return self


class ViewsConfig(Section):
    """Other views of the training pictures, cropped and mirrored, extracted once as well (stage `views`)."""

    number: int = Field(4, ge=1, le=64, description="views beside the whole picture; each epoch draws one of them all")
    crop: float = Field(0.85, gt=0, le=1, description="least share of a photograph's sides that a view shows")
    flip: bool = Field(True, description="mirror every other view; unused where a caption tells left or right")
    seed: int = 0


class CaptionsConfig(Section):
    """How captions become token ids (stage `tensorise`)."""

    tokeniser: str = "treebank"
    units: Literal["words", "bpe"] = Field("words", description="whole words, or byte-pair encoding within words")
    merges: int = Field(4000, ge=1, description="size of the byte-pair vocabulary, learnt from the train split")
    min_count: int = Field(5, ge=1, description="a word, or pair, seen less often in the train split is none")
    max_tokens: int = Field(15, ge=1, le=200, description="longer captions are clamped to this many tokens")

    @model_validator(mode="after")
    def _known(self) -> CaptionsConfig:
        check_known(self.tokeniser, "tokeniser", TOKENISERS)
        return self


class DecoderConfig(Section):
    """The shape of the decoder. A field that is None leaves the decoder's own choice, or does not concern it."""

    name: str
    embedding: int = Field(512, ge=1, description="size of a word's embedding")
    hidden: int = Field(512, ge=1, description="size of the cell's hidden state")
    attention: Attentions | None = Field(None, description="how positions are scored against the hidden state")
    attention_size: int | None = Field(None, ge=1, description="size of the additive attention's layer (512)")
    attention_grid: int | None = Field(
        None, ge=1, le=64, description="side of the positions attended, pooled of the grid's while training"
    )
    gate: bool | None = Field(None, description="scale the context by beta (Xu et al., section 4.2.1)")
    first_state: FirstStates | None = Field(None, description="what the cell begins with (grid)")
    output: Outputs | None = Field(None, description="what the head reads (hidden); Xu et al., eq. 7; an MLP of all")
    output_size: int | None = Field(None, ge=1, description="size of the `mlp` output (512)")
    head: Heads = Field("full", description="how the output becomes logits")
    bottleneck: int = Field(256, ge=1, description="size of the `bottleneck` head")
    tie_weights: bool = Field(False, description="the head's weights are the word embeddings'")
    pca_dim: int | None = Field(None, ge=1, description="channels left by a PCA of the train split's grids")
    word_vectors: Annotated[Path | None, NotInKey()] = Field(
        None, description="word embeddings to begin with, in GloVe's text format; the file's digest is in the key"
    )
    freeze_words: bool = Field(False, description="keep the word embeddings as they begin")
    dropout_words: float = Field(0.0, ge=0, lt=1, description="dropout on the word embeddings")
    dropout_grid: float = Field(0.0, ge=0, lt=1, description="dropout on the annotation vectors")
    dropout_channels: float | None = Field(
        None, ge=0, lt=1, description="dropout of whole channels, at all positions of a grid at once (0)"
    )
    dropout_output: float | None = Field(
        None, ge=0, lt=1, description="dropout before the output layer (0.5; of a Transformer 0.1)"
    )
    layers: int | None = Field(None, ge=1, le=24, description="of a Transformer (3)")
    heads: int | None = Field(None, ge=1, le=64, description="of a Transformer's attention (8)")
    encoder_layers: int | None = Field(None, ge=0, le=24, description="over the grid, before a Transformer's own (0)")
    feed_forward: int | None = Field(None, ge=1, description="inner size of a Transformer's networks (2048)")
    dropout_layers: float | None = Field(None, ge=0, lt=1, description="dropout in a Transformer's layers (0.1)")
    reinforce: float | None = Field(None, ge=0, description="lambda_r of hard attention (1.0)")
    entropy: float | None = Field(None, ge=0, description="lambda_e of hard attention (0.002)")
    baseline_decay: float | None = Field(None, ge=0, lt=1, description="of hard attention's baseline (0.9)")
    expected_share: float | None = Field(None, ge=0, le=1, description="pictures looked at softly (0.5)")

    @model_validator(mode="after")
    def _known(self) -> DecoderConfig:
        check_known(self.name, "decoder", DECODERS)
        for name in type(self).model_fields:
            mine = name in ("name", "word_vectors", "freeze_words") or name in DECODERS[self.name].options
            if not mine and name in self.model_fields_set and getattr(self, name) is not None:
                raise ValueError(f"decoder {self.name} has no `{name}`: leave it out, or set it to null")
        if self.first_state == "zeros" and not DECODERS[self.name].attends:
            raise ValueError(f"decoder {self.name} is told of the picture by its first state alone: it cannot be zeros")
        if self.name == "transformer" and (self.hidden % (self.heads or 8) or self.hidden % 4):
            raise ValueError(f"hidden: {self.hidden} is no multiple of 4 and of heads, {self.heads or 8}")
        if self.head != "bottleneck" and self.bottleneck != type(self).model_fields["bottleneck"].default:
            raise ValueError(f"bottleneck: a {self.head} head has none: set head to bottleneck, or leave it out")
        if self.tie_weights:
            self._check_tied()
        return self

    def _check_tied(self) -> None:
        if self.head == "adaptive":
            raise ValueError("tie_weights: an adaptive softmax has no one layer to tie: take head full or bottleneck")
        width = {"hidden": self.hidden, "deep": self.embedding, "mlp": self.output_size or 512}[self.output or "hidden"]
        read = self.bottleneck if self.head == "bottleneck" else width
        if read != self.embedding:
            what = "bottleneck" if self.head == "bottleneck" else f"{self.output or 'hidden'} output"
            raise ValueError(f"tie_weights: embedding is {self.embedding} wide, the {what} {read}: make them the same")

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the decoder's class."""
        chosen = {name: getattr(self, name) for name in DECODERS[self.name].options}
        return {name: value for name, value in chosen.items() if value is not None}


class FitConfig(Section):
    """How a model is fitted: what all training stages have."""

    epochs: int = Field(20, ge=1)
    batch_pictures: int = Field(16, ge=1, description="pictures a step, each with all its captions")
    learning_rate: float = Field(8e-4, gt=0)
    warmup_steps: int = Field(100, ge=0)
    weight_decay: float = Field(0.0, ge=0, description="decoupled from the gradient (Loshchilov and Hutter 2019)")
    clip_norm: float = Field(5.0, gt=0)
    averaging: float = Field(0.0, ge=0, lt=1, description="decay of the averaged weights; 0 for none")
    select: Literal["bleu4", "cider"] = Field("bleu4", description="score of greedy dev captions that is best on")
    patience: int = Field(5, ge=1, description="epochs without a better dev score before it stops")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the device computes it natively, else float32"
    )
    seed: int = Field(0, ge=0, lt=2**32)


class CrossEntropyConfig(FitConfig):
    """How a model is fitted by teacher forcing."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    unknown_words: float = Field(0.0, ge=0, lt=1, description="share of input words replaced by UNK")
    scheduled_sampling: float = Field(
        0.0, ge=0, le=1, description="share of input words that the model itself says, in the end; grows from nothing"
    )
    doubly_stochastic: float = Field(0.0, ge=0, description="lambda of Xu et al. 2015, equation 14")


class OfGridsConfig(FitConfig):
    """How a decoder is fitted to the cached grids."""

    keep: int = Field(1, ge=1, le=16, description="epochs whose weights are kept, the best on dev; for an ensemble")
    block: int | None = Field(
        None,
        ge=1,
        description="for caches larger than memory: pictures are read in blocks of so many neighbours, and those of "
        "sixteen blocks mixed; none for fully random order",
    )


class TrainingConfig(CrossEntropyConfig, OfGridsConfig):
    """How the decoder is fitted to the cached grids by teacher forcing (stage `train`)."""


class TuningConfig(CrossEntropyConfig):
    """How the backbone is fine-tuned, from the decoder trained on its frozen grids (stage `tune`)."""

    epochs: int = Field(5, ge=1)
    learning_rate: float = Field(1e-4, gt=0, description="of the decoder")
    backbone_learning_rate: float = Field(2e-5, gt=0, description="of the backbone's tuned blocks")
    first_block: int = Field(2, ge=1, le=8, description="the first of the backbone's blocks that is tuned")
    crop: float = Field(0.85, gt=0, le=1, description="least share of a photograph's sides that a random crop keeps")
    flip: bool = Field(True, description="mirror half of the photographs, but none whose captions tell left or right")


class SelfCriticalConfig(OfGridsConfig):
    """How the trained decoder goes on against the CIDEr-D of its own captions (stage `self_critical`)."""

    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    select: Literal["bleu4", "cider"] = Field("cider", description="score of greedy dev captions that is best on")
    samples: int = Field(5, ge=2, le=64, description="captions drawn a picture; the baseline is the others' mean")


class EvaluationConfig(Section):
    """How held-out pictures are captioned and scored (stage `evaluate`)."""

    split: Split = "test"
    search: Searches = Field("beam", description="the likeliest caption found by beams (1 is greedy), or one drawn")
    beam: int = Field(3, ge=1, le=64)
    length_normalisation: float = Field(0.0, ge=0, le=2, description="alpha: log-probability / length ** alpha")
    temperature: float = Field(1.0, gt=0, le=10, description="of sampling: below 1 sharpens")
    top_k: int = Field(0, ge=0, description="sample among the k likeliest words; 0 for all")
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the likeliest words that make this share")
    seed: int = Field(0, ge=0, description="of sampling; a picture's draws depend on it and the picture alone")
    max_length: int = Field(20, ge=1, le=200)
    min_length: int = Field(0, ge=0, le=200, description="words before a caption may end")
    no_repeat: int = Field(0, ge=0, le=10, description="n-grams of this size never come twice; 0 allows them")
    n_best: int = Field(1, ge=1, le=64, description="captions kept a picture, the best and its alternatives")
    ensemble: int = Field(1, ge=1, le=16, description="of the weights kept, so many speak together, the best first")
    metrics: tuple[str, ...] = Field(("bleu", "meteor", "rouge", "cider"), min_length=1)

    @model_validator(mode="after")
    def _known(self) -> EvaluationConfig:
        for name in self.metrics:
            check_known(name, "metric", METRICS)
        if self.search == "beam" and self.n_best > self.beam:
            raise ValueError(f"n_best: {self.n_best} captions cannot come of a beam of {self.beam}")
        if self.min_length >= self.max_length:
            raise ValueError(f"min_length: {self.min_length} words and END are over max_length, {self.max_length}")
        return self

    def decoding(self) -> dict[str, Any]:
        """The fields of models.search.Decoding."""
        return self.model_dump(exclude={"split", "metrics", "ensemble"})


class RegistryConfig(Section):
    """Where the finished captioner goes and when it becomes champion (stage `register`)."""

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    promote_on: str = "bleu4"
    certainty: float = Field(
        0.95, ge=0.5, lt=1, description="champion is who scores higher in this share of a paired bootstrap's resamples"
    )


class MachineConfig(Section):
    """This machine: never part of a key, because it changes nothing that is kept."""

    workspace: str = Field(
        default_factory=lambda: os.environ.get("ATTEND_WORKSPACE", "workspace"),
        description="a folder, or the URL of one in object storage (s3://bucket/name)",
    )
    cache: Path = Field(
        default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "attend",
        description="where what is used of a workspace in object storage is kept",
    )
    cache_gib: float | None = Field(
        None, gt=0, description="GiB of grids that are kept there: what was set last, 100 at first"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(
        0, ge=0, description="threads that compute; 0 for torch's choice within affinity and the container's quota"
    )
    decode_workers: int = Field(
        0, ge=0, description="threads that decode pictures; 0 for machine.threads, else one a core"
    )
    dask: str | None = Field(
        None,
        pattern=r"^[a-z]+://",
        description="a Dask scheduler, whose workers make the shards of grids; else this does",
    )
    dask_resources: dict[str, float] = Field(
        {}, description="what a worker gives to a shard while it makes it, as named by its --resources: {GPU: 1}"
    )
    extract_batch: int = Field(64, ge=1, description="pictures decoded, then encoded, at once")
    decode_batch: int = Field(
        0, ge=0, description="pictures captioned at once; 0 for what 512 MiB hold, 256 at the most"
    )
    shard_rows: int = Field(512, ge=1, description="pictures a shard")
    resident: bool = Field(False, description="keep the grids that are trained on in the GPU's memory")
    checkpoint_seconds: float = Field(120.0, ge=0)
    accumulate: int = Field(1, ge=1, description="pieces that a training step's pictures are taken in, to save memory")
    compile: bool = Field(
        False,
        description="compile extraction's backbone and the decoder's step: seconds, paid back by much work",
    )

    @property
    def address(self) -> str:
        """The workspace, whatever folder one is in: its URL, or its path in full."""
        if "://" in self.workspace:
            return self.workspace
        folder = Path(self.workspace).expanduser().absolute()
        remote = Remote.of(folder)  # where it was named by its cache
        return str(folder) if remote is None else remote.url

    @property
    def folder(self) -> Path:
        """The workspace's folder; where it is in object storage, the one that is its cache."""
        if "://" not in self.workspace:
            return Path(self.workspace).expanduser().absolute()
        url = self.workspace.rstrip("/")
        name = f"{url.rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        folder = self.cache.expanduser().absolute() / name
        tie(folder, url, None if self.cache_gib is None else int(self.cache_gib * 2**30))
        return folder


class Config(BaseModel):
    """Everything a run depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    about: str = ""
    source: str = Field("", description="where the captioner is published")
    data: Dataset
    grids: GridsConfig
    views: ViewsConfig | None = None
    captions: CaptionsConfig = CaptionsConfig()
    decoder: DecoderConfig
    training: TrainingConfig = TrainingConfig()
    tuning: TuningConfig | None = None
    self_critical: SelfCriticalConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    registry: RegistryConfig
    machine: MachineConfig = MachineConfig()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Lay the values over those of their `preset`, and name the model after the run."""
        if not isinstance(values, dict):
            return values
        values = over_preset(values)
        if "name" in values and isinstance(values.get("registry"), dict | None):
            values["registry"] = {"model": values["name"], **(values.get("registry") or {})}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        scores = [score for name in self.evaluation.metrics for score in METRICS[name].scores]
        if self.registry.promote_on not in scores:
            raise ValueError(
                f"registry.promote_on: {self.registry.promote_on!r} is no score of evaluation.metrics; "
                f"these give: {', '.join(scores)}"
            )
        needing = [name for name in self.evaluation.metrics if METRICS[name].needs_facts]
        if needing and not self.data.has_facts:
            raise ValueError(
                f"evaluation.metrics: `{needing[0]}` needs a data set that keeps its facts: only `scenes` does"
            )
        last = "training" if self.self_critical is None else "self_critical"
        fitted = self.self_critical or self.training
        kept = min(fitted.keep, fitted.epochs)
        if self.evaluation.ensemble > kept:
            raise ValueError(
                f"evaluation.ensemble: {self.evaluation.ensemble} cannot speak together: {last} keeps {kept}"
            )
        if self.self_critical is not None and self.decoder.name == "hard_attention":
            raise ValueError("self_critical: hard_attention draws where it looks in `train` alone: take another")
        if self.training.doubly_stochastic and not DECODERS[self.decoder.name].attends:
            raise ValueError(f"training.doubly_stochastic: decoder {self.decoder.name} has no alphas: set it to 0")
        if self.views is not None and self.grids.backbone == "imported":
            raise ValueError("views: imported grids have no photographs and no backbone to make others of")
        if self.tuning is not None:
            blocks = BACKBONES[self.grids.backbone].blocks if self.grids.backbone in BACKBONES else 0
            if self.tuning.first_block > blocks:
                has = f"has {blocks} blocks" if blocks else "does not say which blocks it has"
                raise ValueError(
                    f"tuning.first_block: {self.grids.backbone} {has}: block {self.tuning.first_block} cannot be tuned"
                )
        if self.captions.units == "bpe" and self.decoder.word_vectors is not None:
            raise ValueError("decoder.word_vectors: are of whole words: set captions.units=words")
        if self.tuning is not None and self.tuning.doubly_stochastic and not DECODERS[self.decoder.name].attends:
            raise ValueError(f"tuning.doubly_stochastic: decoder {self.decoder.name} has no alphas: set it to 0")
        if self.data.dev_share + self.data.test_share >= 1:
            raise ValueError("data.dev_share and data.test_share: together they leave nothing to train on")
        return self

    @property
    def workspace(self) -> Path:
        return self.machine.folder


def load(preset_or_file: str, overrides: Sequence[str] = ()) -> Config:
    """The config of a preset or YAML file with `section.field=value` overrides laid over it.

    Raises AttendError for an unknown preset, a file that is no mapping, or any value refused.
    """
    return validate(values_of(preset_or_file, overrides), preset_or_file)


def validate(values: dict[str, Any], where: str) -> Config:
    """The Config of `values`; AttendError names the first field refused and the nearest known one."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise AttendError(f"{where}: {_first_refusal(error)}") from None


def _first_refusal(error: ValidationError) -> str:
    # Unknown keys first: a misspelt required field is also reported missing, and the spelling is the cause.
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    place = [str(part) for part in first["loc"] if part not in ADAPTERS]
    field = ".".join(place)
    if first["type"] == "extra_forbidden":
        return f"{field}: no such setting{nearest(place[-1], _fields(place[:-1], first['loc']))}"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = first.get("ctx", {}).get("tag", "")
        return f"{field}.adapter: unknown dataset adapter {tag!r}{nearest(str(tag), ADAPTERS)}"
    if first["type"] == "missing":
        return f"{field}: is missing"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict) else f" (given {first['input']!r})"
    return f"{field}: {message}{given}" if field else message


def _fields(place: list[str], location: tuple[int | str, ...]) -> list[str]:
    if not place:
        return list(Config.model_fields)
    if place[0] == "data":
        return [name for part in location if part in ADAPTERS for name in ADAPTERS[str(part)].model_fields]
    annotation = Config.model_fields[place[0]].annotation
    model = next((arg for arg in (annotation, *get_args(annotation)) if hasattr(arg, "model_fields")), None)
    return list(model.model_fields) if model is not None else []


def dump(config: Config) -> str:
    """The whole config as canonical JSON."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True)
