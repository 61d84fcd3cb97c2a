"""The config of a run: one frozen section a stage.

A section holds only what changes the results of its stage. Where the pictures lie, the device and the number of workers
change no result: such fields are marked `NotInKey()` or belong to the section `machine`, and never enter a stage's key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.backbones import BACKBONES, LIBRARIES
from models.decoders import DECODERS
from models.options import Attentions, DecoderOptions, Decoding, FirstStates, Heads, Outputs, Searches
from tasks.common.errors import AttendError, check_known, suggestion
from tasks.common.object_storage import Remote, set_cache
from tasks.common.section import NotInKey, Section
from tasks.config.presets import resolve_preset, values_of
from tasks.config.tokenisers import TOKENISERS
from tasks.datasets import ADAPTERS, Dataset
from tasks.metrics import METRICS

Split = Literal["train", "dev", "test"]


class GridsConfig(Section):
    """The backbone, and the grid that it makes of a photograph (stage `extract`)."""

    backbone: str = Field(
        description="backbone: a name of models/backbones, `torchvision:MODEL`, `timm:MODEL`, or `imported` for grids "
        "that others extracted"
    )
    weights: Annotated[str, NotInKey()] = Field(
        description="weights of the backbone: `torchvision:NAME`, `timm:pretrained`, a .safetensors or .pth file, "
        "`random:SEED`, or `imported:NAME`; their digest enters the key"
    )
    image_size: int = Field(
        ge=32, le=2048, description="side, in pixels, of the square to which a photograph is resized"
    )
    fit: Literal["squash", "crop"] = Field(
        "squash",
        description="how a photograph becomes square: `squash` scales each side by itself, `crop` keeps proportions "
        "and cuts out the middle",
    )
    grid: int | None = Field(
        None,
        ge=1,
        le=64,
        description="positions per side to which the grid is average-pooled; default: the backbone's own grid",
    )
    precision: Literal["float32", "bfloat16"] = Field("float32", description="precision of the backbone's computation")
    max_failed: Annotated[float, NotInKey()] = Field(
        0.01,
        ge=0,
        le=1,
        description="largest share of unreadable pictures, from 0 to 1: the stage fails where there are more",
    )

    @model_validator(mode="after")
    def _check(self) -> GridsConfig:
        library, colon, name = self.backbone.partition(":")
        if self.backbone == "imported" and (self.grid is not None or self.precision != "float32"):
            raise ValueError("grid and precision cannot be set for imported grids, which are used as they are")
        if self.backbone != "imported" and not (colon and name and library in LIBRARIES):
            check_known(self.backbone, "backbone", BACKBONES)
        return self


class ViewsConfig(Section):
    """Other views of the training pictures, cropped and mirrored, extracted once as well (stage `views`)."""

    number: int = Field(
        4,
        ge=1,
        le=64,
        description="views of a picture besides the whole picture; every epoch draws one of all these at random",
    )
    crop: float = Field(
        0.85,
        gt=0,
        le=1,
        description="smallest share, up to 1, of a photograph's height and of its width that a view shows",
    )
    flip: bool = Field(
        True,
        description="mirror every other view; for a picture whose captions mention left or right, mirrored views are "
        "not used",
    )
    seed: int = Field(0, description="seed of the random crops")


class CaptionsConfig(Section):
    """How captions become token ids (stage `tensorise`)."""

    tokeniser: str = Field("treebank", description="NLTK tokeniser that splits captions into words")
    units: Literal["words", "bpe"] = Field(
        "words", description="tokens: whole words (`words`), or byte pairs within words (`bpe`)"
    )
    merges: int = Field(4000, ge=1, description="size of the byte-pair vocabulary, learnt from the train split")
    min_count: int = Field(
        5, ge=1, description="occurrences in the train split that a word, or byte pair, needs to be in the vocabulary"
    )
    max_tokens: int = Field(15, ge=1, le=200, description="longer captions are cut to this number of tokens")

    @model_validator(mode="after")
    def _check(self) -> CaptionsConfig:
        check_known(self.tokeniser, "tokeniser", TOKENISERS)
        return self


# Fields of the decoder section that are not options of the decoder's class.
_NOT_OF_THE_CLASS = ("name", "word_vectors", "freeze_words")


class DecoderConfig(Section):
    """The architecture of the decoder.

    The options of each decoder, with their defaults and the rules between them, are in models/options.py. A field that
    is None takes the default there, which its description states, or does not apply to the decoder.
    """

    name: str = Field(description="decoder: a name of models/decoders")
    embedding: int | None = Field(None, ge=1, description="size of a word embedding; default: 512")
    hidden: int | None = Field(
        None, ge=1, description="size of the hidden state; for `transformer`, of all its layers; default: 512"
    )
    attention: Attentions | None = Field(
        None,
        description="how positions are scored against the hidden state; default: `additive`, for `attention_lstm` "
        "`scaled_dot`",
    )
    attention_size: int | None = Field(
        None, ge=1, description="size of the hidden layer of additive attention; default: 512"
    )
    attention_grid: int | None = Field(
        None,
        ge=1,
        le=64,
        description="positions per side that are attended to, average-pooled from the stored grid by the decoder; "
        "default: those of the stored grid",
    )
    gate: bool | None = Field(
        None, description="scale the context by a gate, beta (Xu et al. 2015, section 4.2.1); default: true"
    )
    first_state: FirstStates | None = Field(
        None, description="first state of the recurrent cell: computed from the `grid`, or `zeros`; default: `grid`"
    )
    output: Outputs | None = Field(
        None,
        description="what the head reads: the hidden state (`hidden`), hidden state, context and word combined as in "
        "Xu et al. 2015, equation 7 (`deep`), or by an MLP (`mlp`); default: `hidden`",
    )
    output_size: int | None = Field(None, ge=1, description="size of the `mlp` output's layer; default: 512")
    head: Heads | None = Field(
        None,
        description="layers that compute the logits: one linear layer (`full`), two with a narrow one between "
        "(`bottleneck`), or an adaptive softmax (`adaptive`); default: `full`",
    )
    bottleneck: int | None = Field(None, ge=1, description="size of the `bottleneck` head's narrow layer; default: 256")
    tie_weights: bool | None = Field(
        None, description="use the word embeddings as the head's weights too; default: false"
    )
    pca_dim: int | None = Field(
        None,
        ge=1,
        description="channels to which annotation vectors are projected by a PCA of the train split's grids; "
        "default: no projection",
    )
    word_vectors: Annotated[Path | None, NotInKey()] = Field(
        None,
        description="file of word vectors in GloVe's text format from which the word embeddings start; its digest "
        "enters the key; default: random embeddings",
    )
    freeze_words: bool = Field(False, description="do not train the word embeddings")
    dropout_words: float | None = Field(
        None, ge=0, lt=1, description="share of the word embeddings' values dropped in training; default: 0"
    )
    dropout_grid: float | None = Field(
        None, ge=0, lt=1, description="share of the annotation vectors' values dropped in training; default: 0"
    )
    dropout_channels: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the grid's channels dropped in training, each at all positions at once; default: 0",
    )
    dropout_output: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the values dropped before the output layer in training; default: 0.5, for `transformer` "
        "0.1",
    )
    layers: int | None = Field(None, ge=1, le=24, description="decoder layers of `transformer`; default: 3")
    heads: int | None = Field(None, ge=1, le=64, description="attention heads of `transformer`; default: 8")
    encoder_layers: int | None = Field(
        None,
        ge=0,
        le=24,
        description="self-attention layers over the grid, before the decoder layers of `transformer`; default: 0",
    )
    feed_forward: int | None = Field(
        None, ge=1, description="inner size of the feed-forward networks of `transformer`; default: 2048"
    )
    dropout_layers: float | None = Field(
        None, ge=0, lt=1, description="share of the values dropped in the layers of `transformer`; default: 0.1"
    )
    reinforce: float | None = Field(
        None,
        ge=0,
        description="weight lambda_r of the REINFORCE term of `hard_attention` (Xu et al. 2015, section 4.1); "
        "default: 1.0",
    )
    entropy: float | None = Field(
        None,
        ge=0,
        description="weight lambda_e of the alphas' entropy for `hard_attention` (Xu et al. 2015, section 4.1); "
        "default: 0.002",
    )
    baseline_decay: float | None = Field(
        None, ge=0, lt=1, description="decay of the moving-average baseline of `hard_attention`; default: 0.9"
    )
    expected_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the training pictures for which `hard_attention` uses the soft, expected context instead "
        "of a drawn position; default: 0.5",
    )

    @model_validator(mode="after")
    def _check(self) -> DecoderConfig:
        check_known(self.name, "decoder", DECODERS)
        member = DECODERS[self.name]
        applicable = {item.name for item in fields(member.options)}
        for name in type(self).model_fields:
            applies = name in _NOT_OF_THE_CLASS or name in applicable
            if not applies and getattr(self, name) is not None:
                raise ValueError(f"decoder {self.name} has no `{name}`: leave it out, or set it to null")
        if self.first_state == "zeros" and not member.attends:
            raise ValueError(
                f"first_state: decoder {self.name} sees the picture in its first state alone: set first_state to grid"
            )
        head = self.resolved().head
        if head != "bottleneck" and self.bottleneck is not None:
            raise ValueError(
                f"bottleneck: a {head} head has no bottleneck: set head to bottleneck, or leave bottleneck out"
            )
        return self

    def resolved(self) -> DecoderOptions:
        """Return the options of the decoder's class, with its defaults; ValueError for those that do not fit."""
        names = {item.name for item in fields(DECODERS[self.name].options)}
        values = {name: getattr(self, name) for name in type(self).model_fields if name in names}
        return DECODERS[self.name].options(**{name: value for name, value in values.items() if value is not None})

    def options(self) -> dict[str, Any]:
        """Return the options of the decoder's class, with its defaults, as plain JSON values."""
        return asdict(self.resolved())

    def key_part(self) -> dict[str, Any]:
        """Return the fields on which a key depends, defaults resolved: a default that changes makes training stale."""
        resolved = {name: value for name, value in self.options().items() if value is not None}
        return {**super().key_part(), **resolved}


class FitConfig(Section):
    """The settings that all training stages share."""

    epochs: int = Field(20, ge=1, description="epochs at most; see `patience`")
    batch_pictures: int = Field(16, ge=1, description="pictures per training step, each with all its captions")
    learning_rate: float = Field(8e-4, gt=0, description="learning rate at its peak; it falls to 0 along a cosine")
    warmup_steps: int = Field(100, ge=0, description="steps in which the learning rate rises linearly to its peak")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay, decoupled from the gradient (Loshchilov and Hutter 2019)"
    )
    clip_norm: float = Field(5.0, gt=0, description="norm to which a larger gradient is scaled down")
    averaging: float = Field(
        0.0, ge=0, lt=1, description="decay of the moving average of the weights that is validated and kept; 0 for none"
    )
    select: Literal["bleu4", "cider"] = Field(
        "bleu4", description="score of greedy captions of the dev pictures by which the best epochs are chosen"
    )
    patience: int = Field(5, ge=1, description="epochs without a better dev score after which training stops")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the computation; `auto`: bfloat16 where the device has it in hardware, else float32",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of all that is random in the stage")


class CrossEntropyConfig(FitConfig):
    """The settings of training by teacher forcing."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target probability that is spread over all words"
    )
    unknown_words: float = Field(0.0, ge=0, lt=1, description="share of the input words replaced by UNK")
    scheduled_sampling: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the input words replaced by words drawn from the model at the end of training; it grows "
        "linearly from 0",
    )
    doubly_stochastic: float = Field(
        0.0, ge=0, description="weight lambda of the doubly stochastic term of Xu et al. 2015, equation 14"
    )


class GridTrainingConfig(FitConfig):
    """The settings of training a decoder on the cached grids."""

    keep: int = Field(
        1, ge=1, le=16, description="epochs whose weights are kept, those best on dev; several make an ensemble"
    )
    block: int | None = Field(
        None,
        ge=1,
        description="for caches larger than memory: pictures that lie side by side are read in blocks of this number, "
        "and the pictures of sixteen blocks are shuffled together; default: a fully random order",
    )


class TrainingConfig(CrossEntropyConfig, GridTrainingConfig):
    """How the decoder is trained on the cached grids by teacher forcing (stage `train`)."""


class TuningConfig(CrossEntropyConfig):
    """How the backbone is fine-tuned, with the decoder that was trained on its frozen grids (stage `tune`)."""

    epochs: int = Field(5, ge=1, description="epochs at most; see `patience`")
    learning_rate: float = Field(1e-4, gt=0, description="learning rate of the decoder at its peak")
    backbone_learning_rate: float = Field(
        2e-5, gt=0, description="learning rate, at its peak, of the backbone's blocks that are fine-tuned"
    )
    first_block: int = Field(
        2,
        ge=1,
        le=8,
        description="number, from 1, of the first of the backbone's blocks to fine-tune; all later ones are too",
    )
    crop: float = Field(
        0.85,
        gt=0,
        le=1,
        description="smallest share, up to 1, of a photograph's height and of its width that a random crop keeps",
    )
    flip: bool = Field(
        True, description="mirror half of the photographs, but none whose captions mention left or right"
    )


class SelfCriticalConfig(GridTrainingConfig):
    """How the trained decoder is trained further, rewarded by the CIDEr-D of its captions (stage `self_critical`)."""

    epochs: int = Field(10, ge=1, description="epochs at most; see `patience`")
    learning_rate: float = Field(5e-5, gt=0, description="learning rate at its peak; it falls to 0 along a cosine")
    select: Literal["bleu4", "cider"] = Field(
        "cider", description="score of greedy captions of the dev pictures by which the best epochs are chosen"
    )
    samples: int = Field(
        5,
        ge=2,
        le=64,
        description="captions drawn for each picture; the baseline of each one's reward is the mean of the others'",
    )


class EvaluationConfig(Section):
    """How held-out pictures are captioned and scored (stage `evaluate`)."""

    split: Split = Field("test", description="split whose pictures are captioned and scored")
    search: Searches = Field(
        Decoding.search, description="how captions are found: by beam search (`beam`), or drawn at random (`sample`)"
    )
    beam: int = Field(Decoding.beam, ge=1, le=64, description="hypotheses of the beam search; 1 is greedy search")
    length_normalisation: float = Field(
        Decoding.length_normalisation,
        ge=0,
        le=2,
        description="alpha: beam search ranks captions by log-probability / length ** alpha",
    )
    temperature: float = Field(
        Decoding.temperature, gt=0, le=10, description="temperature of `sample`: below 1 makes likely words likelier"
    )
    top_k: int = Field(
        Decoding.top_k, ge=0, description="`sample` draws from this number of likeliest words; 0 for all words"
    )
    top_p: float = Field(
        Decoding.top_p,
        gt=0,
        le=1,
        description="`sample` draws from the likeliest words that together have this probability",
    )
    seed: int = Field(
        Decoding.seed, ge=0, description="seed of `sample`; a picture's captions depend on it and the picture alone"
    )
    max_length: int = Field(
        Decoding.max_length, ge=1, le=200, description="tokens of a caption at most, the END token included"
    )
    min_length: int = Field(Decoding.min_length, ge=0, le=200, description="words of a caption at least")
    no_repeat: int = Field(
        Decoding.no_repeat,
        ge=0,
        le=10,
        description="size of n-grams that no caption may contain twice; 0 allows repetition",
    )
    n_best: int = Field(
        Decoding.n_best, ge=1, le=64, description="captions kept for each picture: the best one and its alternatives"
    )
    ensemble: int = Field(
        1,
        ge=1,
        le=16,
        description="number of kept epochs, the best ones, whose word probabilities are averaged; see `keep` of "
        "training and self_critical",
    )
    metrics: tuple[str, ...] = Field(
        ("bleu", "meteor", "rouge", "cider"), min_length=1, description="metrics that score the captions"
    )

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        for name in self.metrics:
            check_known(name, "metric", METRICS)
        Decoding(**self.decoding())  # its rules stand there
        return self

    def decoding(self) -> dict[str, Any]:
        """Return the fields of models.options.Decoding."""
        return self.model_dump(exclude={"split", "metrics", "ensemble"})


class RegistryConfig(Section):
    """The name of the registered model, and when a new version becomes champion (stage `register`)."""

    model: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="name of the registered model; default: the run's name"
    )
    promote_on: str = Field("bleu4", description="score of evaluation.metrics by which versions are compared")
    certainty: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="share of a paired bootstrap's resamples in which a version must score higher than the champion to "
        "replace it",
    )


class MachineConfig(Section):
    """The settings of this machine. They never enter a key, because they change no result."""

    workspace: str = Field(
        default_factory=lambda: os.environ.get("ATTEND_WORKSPACE", "workspace"),
        description="folder in which everything is kept, or its URL in object storage (s3://bucket/name); default: "
        "ATTEND_WORKSPACE, else ./workspace",
    )
    cache: Path = Field(
        default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "attend",
        description="folder for local copies of what is used from workspaces in object storage; default: attend in "
        "XDG_CACHE_HOME, else in ~/.cache",
    )
    cache_gib: float | None = Field(
        None, gt=0, description="GiB of grids that the cache may hold; default: the value set last, 100 at first"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device that computes; `auto`: a GPU where torch can use one, else the CPU"
    )
    threads: int = Field(
        0,
        ge=0,
        description="threads that compute; 0 for torch's choice within CPU affinity and the container's quota",
    )
    decode_workers: int = Field(
        0, ge=0, description="threads that decode pictures; 0 for machine.threads or, where that is 0, one per core"
    )
    dask: str | None = Field(
        None,
        pattern=r"^[a-z]+://",
        description="address of a Dask scheduler whose workers extract the grids; default: this process does",
    )
    dask_resources: dict[str, float] = Field(
        {},
        description="resources of a Dask worker that the making of a shard occupies, as named by its --resources: "
        "{GPU: 1}",
    )
    extract_batch: int = Field(64, ge=1, description="pictures that extraction decodes, then encodes, at once")
    decode_batch: int = Field(
        0, ge=0, description="pictures captioned at once; 0 for as many as 512 MiB of memory hold, 256 at most"
    )
    shard_rows: int = Field(512, ge=1, description="pictures per shard of grids")
    resident: bool = Field(False, description="keep the grids used in training in the GPU's memory")
    checkpoint_seconds: float = Field(120.0, ge=0, description="seconds between two checkpoints of a training")
    accumulate: int = Field(
        1, ge=1, description="parts in which a training step takes its pictures, one after another, to save memory"
    )
    compile: bool = Field(
        False,
        description="compile the backbone for extraction and the decoder's training step: takes seconds, which long "
        "runs regain",
    )

    @property
    def address(self) -> str:
        """Return the workspace's URL or absolute path, which is the same from every folder."""
        if "://" in self.workspace:
            return self.workspace
        folder = Path(self.workspace).expanduser().absolute()
        remote = Remote.for_cache(folder)  # the config may name the folder that is the cache of a URL
        return str(folder) if remote is None else remote.url

    @property
    def folder(self) -> Path:
        """Return the workspace's folder; for a workspace in object storage, the folder that is its cache."""
        if "://" not in self.workspace:
            return Path(self.workspace).expanduser().absolute()
        url = self.workspace.rstrip("/")
        name = f"{url.rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        folder = self.cache.expanduser().absolute() / name
        set_cache(folder, url, None if self.cache_gib is None else int(self.cache_gib * 2**30))
        return folder


class Config(BaseModel):
    """Everything that a run depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="name of the run")
    about: str = Field("", description="one line about the run")
    source: str = Field("", description="publication that describes the captioner")
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
        """Merge the values over those of their `preset`, and name the registered model after the run."""
        if not isinstance(values, dict):
            return values
        values = resolve_preset(values)
        if "name" in values and isinstance(values.get("registry"), dict | None):
            values["registry"] = {"model": values["name"], **(values.get("registry") or {})}
        return values

    @model_validator(mode="after")
    def _check_sections(self) -> Config:
        """Raise ValueError where two sections contradict each other."""
        scores = [score for name in self.evaluation.metrics for score in METRICS[name].scores]
        if self.registry.promote_on not in scores:
            raise ValueError(
                f"registry.promote_on: {self.registry.promote_on!r} is not a score of evaluation.metrics, which give: "
                f"{', '.join(scores)}"
            )
        need_facts = [name for name in self.evaluation.metrics if METRICS[name].needs_facts]
        if need_facts and not self.data.has_facts:
            raise ValueError(
                f"evaluation.metrics: `{need_facts[0]}` needs facts about each picture, which only `scenes` has: "
                "leave it out, or set data.adapter=scenes"
            )
        last_section = "training" if self.self_critical is None else "self_critical"
        last_fit = self.self_critical or self.training
        kept = min(last_fit.keep, last_fit.epochs)
        if self.evaluation.ensemble > kept:
            raise ValueError(
                f"evaluation.ensemble: needs the weights of {self.evaluation.ensemble} epochs, but {last_section} "
                f"keeps {kept}: raise {last_section}.keep (and {last_section}.epochs, if less)"
            )
        if self.self_critical is not None and self.decoder.name == "hard_attention":
            raise ValueError(
                "self_critical: hard_attention draws the positions it attends to in stage `train` alone: "
                "choose another decoder"
            )
        if self.training.doubly_stochastic and not DECODERS[self.decoder.name].attends:
            raise ValueError(f"training.doubly_stochastic: decoder {self.decoder.name} has no alphas: set it to 0")
        if self.views is not None and self.grids.backbone == "imported":
            raise ValueError(
                "views: imported grids have neither photographs nor a backbone to make views with: leave views out"
            )
        if self.tuning is not None:
            blocks = BACKBONES[self.grids.backbone].blocks if self.grids.backbone in BACKBONES else 0
            if self.tuning.first_block > blocks:
                has = f"has {blocks} blocks" if blocks else "does not say which blocks it has"
                raise ValueError(
                    f"tuning.first_block: {self.grids.backbone} {has}: block {self.tuning.first_block} cannot be tuned"
                )
        if self.captions.units == "bpe" and self.decoder.word_vectors is not None:
            raise ValueError("decoder.word_vectors: word vectors are for whole words: set captions.units=words")
        if self.tuning is not None and self.tuning.doubly_stochastic and not DECODERS[self.decoder.name].attends:
            raise ValueError(f"tuning.doubly_stochastic: decoder {self.decoder.name} has no alphas: set it to 0")
        if self.data.dev_share + self.data.test_share >= 1:
            raise ValueError("data.dev_share and data.test_share: together they leave nothing to train on")
        return self

    @property
    def workspace(self) -> Path:
        """Return the workspace's folder on this machine; see `MachineConfig.folder`."""
        return self.machine.folder


def load(preset_or_file: str, overrides: Sequence[str] = ()) -> Config:
    """Return the config of a preset or YAML file with `section.field=value` overrides merged over it.

    Raises AttendError for an unknown preset, a file that is not a mapping, or any value refused.
    """
    return validate(values_of(preset_or_file, overrides), preset_or_file)


def validate(values: dict[str, Any], where: str) -> Config:
    """Return the Config of `values`; AttendError names the first field refused and the closest known one.

    where: the preset or file that the values are from, for the message.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise AttendError(f"{where}: {_first_refusal(error)}") from None


def _first_refusal(error: ValidationError) -> str:
    """Return one line about the first field refused."""
    # Unknown keys first: a misspelt required field is also reported missing, and the spelling is the cause.
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"] if part not in ADAPTERS]
    field = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{field}: no such setting{suggestion(path[-1], _known_fields(path[:-1], first['loc']))}"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = first.get("ctx", {}).get("tag", "")
        return f"{field}.adapter: unknown dataset adapter {tag!r}{suggestion(str(tag), ADAPTERS)}"
    if first["type"] == "missing":
        return f"{field}: is missing"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict) else f" (given {first['input']!r})"
    return f"{field}: {message}{given}" if field else message


def _known_fields(path: list[str], location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the fields of the section at `path`; of the config itself where that is empty.

    location: pydantic's location of the error, which names the adapter too.
    """
    if not path:
        return list(Config.model_fields)
    if path[0] == "data":
        return [name for part in location if part in ADAPTERS for name in ADAPTERS[str(part)].model_fields]
    annotation = Config.model_fields[path[0]].annotation
    model = next((arg for arg in (annotation, *get_args(annotation)) if hasattr(arg, "model_fields")), None)
    return list(model.model_fields) if model is not None else []


def dump(config: Config) -> str:
    """Return the whole config as canonical JSON."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True)
