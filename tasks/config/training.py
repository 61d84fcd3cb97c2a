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
    "CIDEr; `likelihood`: the geometric mean probability of the words of the pictures' own captions, which is more "
    "informative if dev has few captions"
)


class FitConfig(Section):
    """The settings that all training stages share."""

    epochs: int = Field(20, ge=1, description="maximum number of epochs; see `training.patience`")
    batch_pictures: int = Field(16, ge=1, description="pictures per training step, each with all its captions")
    learning_rate: float = Field(8e-4, gt=0, description="peak learning rate; it then falls to 0 along a cosine")
    warmup_steps: int = Field(
        100, ge=0, description="warm-up steps, in which the learning rate rises linearly to its peak"
    )
    clip_norm: float = Field(
        5.0, ge=0, description="maximum norm of the gradient; larger gradients are scaled down to it; 0 for no limit"
    )
    averaging: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the moving average of the weights, which is validated and kept; 0 for no averaging",
    )
    select: _Score = Field("cider", description=_ABOUT_SELECT)
    patience: int = Field(5, ge=1, description="epochs without a better dev score after which training stops")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the computation; `auto`: bfloat16 if the hardware computes it natively, else float32",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="random seed of the stage")


class CrossEntropyConfig(FitConfig):
    """The settings of training by teacher forcing."""

    loss_mean: Literal["tokens", "captions"] = Field(
        "tokens",
        description="what the loss is averaged over: the `tokens` of a batch, or its `captions`, each with the sum "
        "over its tokens",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target probability that is spread over all words"
    )
    unknown_words: float = Field(0.0, ge=0, lt=1, description="share of the input words that is replaced by UNK")
    scheduled_sampling: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the input words that is replaced by words sampled from the model; it grows linearly from "
        "0 to this value at the end of training",
    )
    doubly_stochastic: float = Field(
        0.0,
        ge=0,
        description="weight lambda of the doubly stochastic term of Xu et al. 2015, equation 14, with the mean over "
        "positions instead of their sum",
    )


class GridTrainingConfig(FitConfig):
    """The settings of training a decoder on the cached grids."""

    captions_per_picture: int = Field(
        64,
        ge=1,
        le=64,
        description="maximum captions per picture in a batch; if a picture has more, each epoch draws this many at "
        "random",
    )
    epoch_batches: int | None = Field(
        None, ge=1, description="batches per epoch; default: as many as are needed to show each picture once"
    )
    block: int | None = Field(
        None,
        ge=1,
        description="for caches larger than memory: pictures stored next to each other are read in blocks of this "
        "size, and the pictures of sixteen blocks are shuffled together; default: a fully random order",
    )


class TrainingConfig(CrossEntropyConfig, GridTrainingConfig):
    """How the decoder is trained on the cached grids by teacher forcing (stage `train`)."""

    start_from: str | None = Field(
        None,
        min_length=1,
        description="captioner whose weights training starts from; its words keep their weights, and new words are "
        "added. `models:/NAME@ALIAS`, `models:/NAME/VERSION`, or the folder or URL of an exported captioner: `grids`, "
        "`decoder` and the tokeniser are then taken from it, and training runs again if its digest changes. "
        "`champion`: this model's own champion, if there is one; a new champion alone does not run training again. "
        "Default: from scratch",
    )
    start_store: str | None = Field(
        None,
        min_length=1,
        description="MLflow store of the model in `start_from`: the folder of a workspace, or the URL of a tracking "
        "server; default: this workspace's own store",
    )


class TuningConfig(CrossEntropyConfig):
    """How the backbone is fine-tuned together with the decoder trained on its frozen grids (stage `tune`).
    `training` sets the other settings, such as `seed`, `patience` and `label_smoothing`.
    """

    SHARED: ClassVar = (*_SHARED, "select", *CrossEntropyConfig.__annotations__)

    epochs: int = Field(5, ge=1, description="maximum number of epochs; see `training.patience`")
    learning_rate: float = Field(1e-4, gt=0, description="peak learning rate of the decoder")
    backbone_learning_rate: float = Field(
        2e-5, gt=0, description="peak learning rate of the fine-tuned blocks of the backbone"
    )
    first_block: int = Field(
        2,
        ge=1,
        le=64,
        description="first block of the backbone to fine-tune, counted from 1; all later blocks are fine-tuned too. "
        "The blocks of a timm model are those of its `group_matcher`",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor by which the learning rate falls from each block of the backbone to the one before it, "
        "such as 0.75 for a ViT",
    )
    jitter: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="maximum random change of a photograph's brightness, contrast and saturation, each independently, "
        "as a share such as 0.2; hues are not changed, because captions name colours; default: none",
    )


class SelfCriticalConfig(GridTrainingConfig):
    """How the trained decoder is trained further, with rewards for the captions it samples (stage `self_critical`).
    `training` sets the other settings, such as `seed` and `patience`.
    """

    SHARED: ClassVar = (*_SHARED, "epoch_batches", "block")

    epochs: int = Field(10, ge=1, description="maximum number of epochs; see `training.patience`")
    learning_rate: float = Field(5e-5, gt=0, description="peak learning rate; it then falls to 0 along a cosine")
    samples: int = Field(
        5,
        ge=2,
        le=64,
        description="captions sampled for each picture; the baseline of each reward is the mean reward of the other "
        "samples",
    )
    meteor: float | None = Field(
        None,
        gt=0,
        description="weight of METEOR (0 to 1), which favours fuller captions, in the reward; CIDEr-D (0 to 10) has "
        "weight 1; default: only CIDEr-D",
    )
