"""The config sections of the stages that do not train: grids, captions, memory, evaluation and registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from models.backbones import BACKBONES, LIBRARIES
from models.options import Decoding, Neighbours, Runtime, Searches
from tasks.common.errors import check_known
from tasks.common.files import check_path
from tasks.common.section import NotInKey, Section
from tasks.metrics import METRICS

Split = Literal["train", "dev", "test"]
# Tokeniser -> NLTK's class; see tasks/data/tokenisers.py.
NLTK_TOKENISERS = {
    "treebank": "NLTKWordTokenizer",
    "wordpunct": "WordPunctTokenizer",
    "toktok": "ToktokTokenizer",
    "tweet": "TweetTokenizer",
}
# Tokeniser -> how its tokens are joined, see models/vocabulary.py.
TOKENISERS = {
    **dict.fromkeys(NLTK_TOKENISERS, "spaces"),
    "unicode": "script",
    "characters": "nothing",
    "whitespace": "spaces",
}


class GridsConfig(Section):
    """The backbone and the grids that it computes from photographs (stage `extract`)."""

    backbone: str = Field(
        description="backbone: a name in models/backbones, `torchvision:MODEL`, `timm:MODEL`, or `imported` for "
        "precomputed grids"
    )
    weights: Annotated[str, NotInKey(), AfterValidator(check_path)] = Field(
        description="weights of the backbone: `torchvision:NAME`, `timm:pretrained`, a .safetensors or .pth file, "
        "`random:SEED`, or `imported:NAME`; their digest is part of the key"
    )
    image_size: int = Field(
        ge=32, le=2048, description="side of the square to which photographs are resized, in pixels"
    )
    fit: Literal["squash", "crop"] = Field(
        "squash",
        description="how a photograph is made square: `squash` scales both sides independently, `crop` keeps the "
        "proportions and crops the centre",
    )
    layer: int | None = Field(
        None,
        ge=-64,
        le=-2,
        description="layer of a timm model whose output is the grid: -2 is the second to last, without the final norm "
        "(as LLaVA uses CLIP); default: the last, after the final norm",
    )
    grid: int | None = Field(
        None,
        ge=1,
        le=64,
        description="side of the grid after average pooling, in positions; default: the backbone's own grid",
    )
    precision: Literal["float32", "bfloat16"] = Field("float32", description="precision of the backbone's computation")
    max_failed: Annotated[float, NotInKey()] = Field(
        0.01,
        ge=0,
        le=1,
        description="largest share of unreadable pictures, from 0 to 1; the stage fails if there are more",
    )

    @model_validator(mode="after")
    def _check(self) -> GridsConfig:
        library, colon, name = self.backbone.partition(":")
        if self.backbone == "imported" and (self.grid, self.layer, self.precision) != (None, None, "float32"):
            raise ValueError("grid, layer and precision cannot be set for imported grids, which are used as they are")
        if self.layer is not None and library != "timm":
            raise ValueError(f"layer: {self.backbone} gives its last layer alone: leave it out, or take a timm model")
        if self.backbone != "imported" and not (colon and name and library in LIBRARIES):
            check_known(self.backbone, "backbone", BACKBONES)
        return self


class EncoderConfig(Section):
    """An encoder that reproduces the imported grids, so that a registered model can caption photographs."""

    backbone: str = Field(description="backbone, as in `grids`")
    weights: Annotated[str, NotInKey()] = Field(description="weights, as in `grids`; their digest is part of the key")
    image_size: int = Field(ge=32, le=2048, description="side of the square input, in pixels")
    fit: Literal["squash", "crop"] = Field("squash", description="how a photograph is made square, as in `grids`")
    layer: int | None = Field(None, ge=-64, le=-2, description="layer whose output is the grid, as in `grids`")
    grid: int | None = Field(None, ge=1, le=64, description="side of the grid after average pooling, in positions")
    projection: Annotated[Path | None, NotInKey()] = Field(
        None,
        description=".npy file of the matrix that projected the channels, such as that of an SVD; its digest is part "
        "of the key",
    )
    examples: Annotated[Path | None, NotInKey()] = Field(
        None, description="folder of photographs of some of the grids, each named by the row number of its grid, from 0"
    )

    @model_validator(mode="after")
    def _check(self) -> EncoderConfig:
        self.as_grids()  # its checks refuse an unknown backbone
        return self

    def as_grids(self) -> GridsConfig:
        """Return the settings of its backbone as a section `grids`."""
        return GridsConfig(**self.model_dump(exclude={"projection", "examples"}))


class CaptionsConfig(Section):
    """How captions become token ids (stage `tensorise`)."""

    tokeniser: str = Field(
        "treebank",
        description="how captions are split into words: by NLTK's `treebank`, `wordpunct`, `toktok` or `tweet`; "
        "`unicode`, at Unicode word boundaries, for any script; into `characters`; or at `whitespace`, which keeps "
        "punctuation",
    )
    units: Literal["words", "bpe"] = Field(
        "words",
        description="tokens: whole `words`, or byte pairs (`bpe`) within words, or across words with the tokeniser "
        "`characters`",
    )
    merges: int = Field(4000, ge=1, description="size of the byte-pair vocabulary, learnt from the train split")
    min_count: int = Field(
        5,
        ge=1,
        description="minimum number of occurrences in the train split for a word or byte pair to be in the vocabulary",
    )
    vocabulary: Literal["train", "given", "joined"] = Field(
        "train",
        description="source of the words: the captions of the `train` split; these and the vocabulary of the captioner "
        "that training starts from (`joined`); or the data set's own vocabulary with its ids (`given`), which needs "
        "`tokeniser: whitespace`",
    )
    max_tokens: int = Field(
        15,
        ge=1,
        le=200,
        description="maximum number of tokens per caption; longer captions are cut, and do not teach the decoder where "
        "captions end",
    )

    @model_validator(mode="after")
    def _check(self) -> CaptionsConfig:
        check_known(self.tokeniser, "tokeniser", TOKENISERS)
        if self.units == "bpe" and self.tokeniser == "unicode":
            raise ValueError("units: byte pairs are within words, or of whole captions: set tokeniser=characters")
        if self.vocabulary == "given" and (self.tokeniser, self.units) != ("whitespace", "words"):
            raise ValueError("vocabulary: a given one is of whole words: set tokeniser=whitespace and units=words")
        if self.vocabulary == "joined" and self.units != "words":
            raise ValueError("vocabulary: byte pairs of two vocabularies cannot be joined: set vocabulary=train")
        return self


class MemoryConfig(Section):
    """The training pictures that a captioner keeps, to look up those similar to a new picture (stage `remember`)."""

    pictures: int = Field(
        200_000, ge=1, description="training pictures to keep; if there are more, this many are drawn at random"
    )
    joined: bool | None = Field(
        None,
        description="also keep the pictures that the captioner of training.start_from remembers; needs "
        "captions.vocabulary=joined; default: false",
    )


class NeighboursConfig(Section):
    """How captions are ranked by their similarity to the captions of similar training pictures."""

    number: int = Field(
        Neighbours.number, ge=1, le=1000, description="similar training pictures whose captions are used"
    )
    temperature: float = Field(
        Neighbours.temperature,
        gt=0,
        le=10,
        description="temperature of their weights, exp(cosine similarity / temperature)",
    )
    factor: float = Field(
        Neighbours.factor,
        ge=0,
        le=1000,
        description="factor with which a caption's weighted mean CIDEr-D / 10 against their captions is added to its "
        "mean log-probability",
    )
    match: float = Field(
        Neighbours.match,
        ge=0,
        le=1000,
        description="factor with which the match of its words and the picture, from -1 to 1, is added; the matcher "
        "needs 5,000 captions of 1,000 pictures",
    )
    copies: float | None = Field(
        Neighbours.copies,
        gt=0,
        le=100,
        description="one of their captions replaces the best caption if it is more than this many times as similar to "
        "the other captions; default: never",
    )


class EvaluationConfig(Section):
    """How held-out pictures are captioned and scored (stage `evaluate`)."""

    split: Split = Field("test", description="split whose pictures are captioned and scored")
    search: Searches = Field(
        Decoding.search, description="how captions are generated: by `beam` search, or by random sampling (`sample`)"
    )
    beam: int = Field(
        Decoding.beam, ge=1, le=64, description="beam width: the number of hypotheses; 1 is greedy search"
    )
    length_normalisation: float = Field(
        Decoding.length_normalisation,
        ge=0,
        le=2,
        description="alpha: beam search ranks captions by log-probability / length ** alpha",
    )
    temperature: float = Field(
        Decoding.temperature,
        gt=0,
        le=10,
        description="temperature of `sample`: values below 1 make likely words likelier",
    )
    max_length: int = Field(
        Decoding.max_length, ge=1, le=200, description="maximum number of tokens per caption, including END"
    )
    no_repeat: int = Field(
        Decoding.no_repeat,
        ge=0,
        le=10,
        description="size of n-grams that may not occur twice in a caption; 0 allows repetition",
    )
    no_echo: bool = Field(
        Decoding.no_echo, description="forbid a word directly after itself; only for captions split into whole words"
    )
    neighbours: Literal["fitted", "off"] | NeighboursConfig = Field(
        "fitted",
        description="whether captions of similar training pictures help to rank the captions of a beam: `fitted`, "
        "unless they clearly do not help on dev; `off`, and a registered model then contains no captions; or `number`, "
        "`temperature`, `factor`, `match` and `copies`",
    )
    n_best: int = Field(
        Decoding.n_best,
        ge=1,
        le=100,
        description="number of captions kept for each picture: the best one and its alternatives",
    )
    acceptable: float = Field(
        50.0,
        gt=0,
        le=1000,
        description="minimum CIDEr-D, in percent, of an acceptable caption; the `confidence` of a caption is the "
        "probability that it is acceptable",
    )
    metrics: tuple[str, ...] = Field(
        ("bleu", "meteor", "rouge", "cider"), min_length=1, description="metrics that score the captions"
    )

    @field_validator("neighbours", mode="before")
    @classmethod
    def _read_off(cls, neighbours: Any) -> Any:
        """Return `off` for False, because YAML reads `off` as a boolean."""
        return "off" if neighbours is False else neighbours

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        for name in self.metrics:
            check_known(name, "metric", METRICS)
        self.decoding()  # raises by the rules of Decoding
        return self

    def decoding(self) -> Decoding:
        """Return the settings of decoding; ValueError for those that do not go together."""
        settings = self.model_dump(exclude={"split", "metrics", "acceptable", "neighbours"})
        return Decoding(**settings, neighbours=self.search == "beam" and self.neighbours != "off")


class RegistryConfig(Section):
    """The name of the registered model, and when a new version becomes champion (stage `register`)."""

    model: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="name of the registered model; default: the run's name"
    )
    promote_on: Annotated[str, NotInKey()] = Field(
        "bleu4", description="score of evaluation.metrics by which versions are compared"
    )
    min_pictures: Annotated[int, NotInKey()] = Field(
        30, ge=1, description="minimum number of pictures in a comparison for a version to replace the champion"
    )
    certainty: Annotated[float, NotInKey()] = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="share of the resamples of a paired bootstrap in which a version must score higher than the "
        "champion to replace it",
    )
    few_pictures: Annotated[int, NotInKey()] = Field(
        200,
        ge=0,
        description="with fewer held-out pictures than this, a version trained on all of the champion's data and more "
        "also replaces it if it is not worse: see `max_loss`",
    )
    max_loss: Annotated[float, NotInKey()] = Field(
        0.15,
        ge=0,
        le=1,
        description="a version is not worse than the champion if the 95 % interval of the difference excludes a loss "
        "of more than this share of the champion's score",
    )
    max_same_caption: Annotated[float | None, NotInKey()] = Field(
        None,
        ge=0,
        le=1,
        description="a version fails this gate if more than this share of the pictures have the same caption, such as "
        "0.5; default: not checked",
    )
    max_overused_word: Annotated[float | None, NotInKey()] = Field(
        None,
        ge=0,
        le=1,
        description="a version fails this gate if it uses a word for more pictures than people do, by more than this "
        "share of all pictures, such as 0.5",
    )
    min_retrieved: Annotated[float | None, NotInKey()] = Field(
        None,
        ge=0,
        le=1,
        description="minimum share of a version's captions that are likelier for their own picture than for each of up "
        "to 100 others, such as 0.1; captions that have nothing to do with their pictures reach 0.01",
    )
    max_slice_loss: Annotated[float | None, NotInKey()] = Field(
        None,
        ge=0,
        le=1,
        description="a version fails this gate if it loses more than this share of the champion's CIDEr on a slice "
        "(pictures of men, of women, of a source, with long captions, with rare words), such as 0.2",
    )
    min_over_copied: Annotated[float | None, NotInKey()] = Field(
        None,
        ge=0,
        le=100,
        description="minimum ratio of a version's CIDEr to that of captions copied from similar training pictures, "
        "such as 1",
    )
    runtimes: list[Runtime] = Field(
        ["torch"],
        description="runtimes of a version: `torch`, and `onnx`, `onnx-float16` or `onnx-int8`, which do not need "
        "torch, the last two with smaller weights; the first that is installed is used",
    )
    max_runtime_loss: float = Field(
        0.5,
        ge=0,
        description="a runtime is left out of a version if its score promote_on is lower than torch's by more than "
        "this",
    )

    @field_validator("runtimes")
    @classmethod
    def _check_runtimes(cls, runtimes: list[Runtime]) -> list[Runtime]:
        if "torch" not in runtimes or len(set(runtimes)) < len(runtimes):
            raise ValueError("needs torch, by which a version is scored and compared, and each runtime once")
        return runtimes
