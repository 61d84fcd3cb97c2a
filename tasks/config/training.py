"""The config sections of the stages that train: `training`, `tuning` and `self_critical`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.common.section import Section

# The fields that the later stages take from `training`; they can be set only there.
_SHARED = ("warmup_steps", "clip_norm", "patience", "precision", "seed")
_Score = Literal["bleu4", "meteor", "cider", "mean", "likelihood"]
_ABOUT_SELECT = (
    "score of greedy captions of the dev pictures by which the best epochs are chosen; `mean`: of BLEU-4, METEOR and "
    "CIDEr; `likelihood`: the geometric mean probability of the words of their captions, which says more where dev has "
    "few captions"
)


class FitConfig(Section):
    """The settings that all training stages share."""

    epochs: int = Field(20, ge=1, description="epochs at most; see `training.patience`")
    batch_pictures: int = Field(16, ge=1, description="pictures per training step, each with all its captions")
    learning_rate: float = Field(8e-4, gt=0, description="learning rate at its peak; it falls to 0 along a cosine")
    warmup_steps: int = Field(100, ge=0, description="steps in which the learning rate rises linearly to its peak")
    clip_norm: float = Field(5.0, ge=0, description="norm to which a larger gradient is scaled down; 0 for no limit")
    averaging: float = Field(
        0.0, ge=0, lt=1, description="decay of the moving average of the weights that is validated and kept; 0 for none"
    )
    select: _Score = Field("bleu4", description=_ABOUT_SELECT)
    patience: int = Field(5, ge=1, description="epochs without a better dev score after which training stops")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the computation; `auto`: bfloat16 where the device has it in hardware, else float32",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of all that is random in the stage")


class CrossEntropyConfig(FitConfig):
    """The settings of training by teacher forcing."""

    loss_mean: Literal["tokens", "captions"] = Field(
        "tokens",
        description="what the loss is a mean over: the `tokens` of a batch, or its `captions`, each with the sum over "
        "its tokens",
    )
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

    captions_per_picture: int = Field(
        64,
        ge=1,
        le=64,
        description="captions of a picture that a batch has at most; of a picture with more, each epoch draws them",
    )
    epoch_batches: int | None = Field(
        None, ge=1, description="batches of an epoch; default: as many as show each picture once"
    )
    block: int | None = Field(
        None,
        ge=1,
        description="for caches larger than memory: pictures that lie side by side are read in blocks of this number, "
        "and the pictures of sixteen blocks are shuffled together; default: a fully random order",
    )


class TrainingConfig(CrossEntropyConfig, GridTrainingConfig):
    """How the decoder is trained on the cached grids by teacher forcing (stage `train`)."""

    start_from: str | None = Field(
        None,
        min_length=1,
        description="captioner whose weights training starts from: words keep theirs, and new ones are added. "
        "`models:/NAME@ALIAS` or `models:/NAME/VERSION`, or the folder or URL of an exported captioner: `grids`, "
        "`decoder` and the tokeniser are then its own; another digest of it trains again. `champion`: the model's own "
        "champion, where there is one; another champion alone is no reason to train again. Default: from the beginning",
    )
    start_store: str | None = Field(
        None,
        min_length=1,
        description="MLflow store that has the model of `start_from`: the folder of a workspace, or the URL of a "
        "tracking server; default: this workspace's own",
    )


class TuningConfig(CrossEntropyConfig):
    """How the backbone is fine-tuned, with the decoder that was trained on its frozen grids (stage `tune`).
    `training` sets the rest, such as `seed`, `patience` and `label_smoothing`.
    """

    SHARED: ClassVar = (*_SHARED, "select", *CrossEntropyConfig.__annotations__)

    epochs: int = Field(5, ge=1, description="epochs at most; see `training.patience`")
    learning_rate: float = Field(1e-4, gt=0, description="learning rate of the decoder at its peak")
    backbone_learning_rate: float = Field(
        2e-5, gt=0, description="learning rate, at its peak, of the backbone's blocks that are fine-tuned"
    )
    first_block: int = Field(
        2,
        ge=1,
        le=64,
        description="number, from 1, of the first of the backbone's blocks to fine-tune; all later ones are too. A "
        "model of timm has the blocks of its `group_matcher`",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor by which the learning rate falls from each of the backbone's blocks to the one before it, "
        "such as 0.75 for a ViT",
    )
    jitter: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="largest share, such as 0.2, by which a photograph's brightness, contrast and saturation are "
        "raised or lowered at random, each by itself; its hues stay, because captions name colours; default: none",
    )


class SelfCriticalConfig(GridTrainingConfig):
    """How the trained decoder is trained further, rewarded for the captions that it samples (stage `self_critical`).
    `training` sets the rest, such as `seed` and `patience`.
    """

    SHARED: ClassVar = (*_SHARED, "epoch_batches", "block")

    epochs: int = Field(10, ge=1, description="epochs at most; see `training.patience`")
    learning_rate: float = Field(5e-5, gt=0, description="learning rate at its peak; it falls to 0 along a cosine")
    select: _Score = Field("cider", description=_ABOUT_SELECT)
    samples: int = Field(
        5,
        ge=2,
        le=64,
        description="captions drawn for each picture; the baseline of each one's reward is the mean of the others'",
    )
    meteor: float | None = Field(
        None,
        gt=0,
        description="weight in the reward of METEOR (0 to 1), which favours fuller captions, beside that of CIDEr-D "
        "(0 to 10), which is 1; default: CIDEr-D alone",
    )
