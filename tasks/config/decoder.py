"""The config section of the decoder."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from pydantic import Field, model_validator

from models.decoders import DECODERS
from models.options import Attentions, DecoderOptions, FirstStates, Outputs, ShowAttendTellOptions
from tasks.common.errors import check_known
from tasks.common.section import Section

# Fields of the decoder section that are not options of the decoder's class.
_NOT_OF_THE_CLASS = {"name", "members"}


class DecoderConfig(Section):
    """The architecture of the decoder.

    The options of each decoder, with their defaults and the rules between them, are in models/options.py. A field that
    is None takes the default there, which its description states, or does not apply to the decoder.
    """

    name: str = Field(description="name of a decoder in models/decoders")
    members: int = Field(
        1,
        ge=1,
        le=16,
        description="decoders trained together as an ensemble, from different random weights: the probability of the "
        "next word is the mean of theirs; time and memory grow with their number",
    )
    embedding: int | None = Field(None, ge=1, description="size of a word embedding; default: 512")
    hidden: int | None = Field(
        None, ge=1, description="size of the hidden state; for `transformer`, of all layers; default: 512"
    )
    attention: Attentions | None = Field(
        None,
        description="how grid positions are scored against the hidden state; default: `additive`, for `attention_lstm` "
        "`scaled_dot`",
    )
    attention_size: int | None = Field(
        None, ge=1, description="size of the hidden layer of additive attention; default: 512"
    )
    attention_grid: int | None = Field(
        None,
        ge=1,
        le=64,
        description="side of the grid that the decoder attends to, average-pooled from the stored grid; default: that "
        "of the stored grid",
    )
    gate: bool | None = Field(
        None, description="whether to scale the context by a gate, beta (Xu et al. 2015, section 4.2.1); default: true"
    )
    first_state: FirstStates | None = Field(
        None,
        description="initial state of the recurrent cell: computed from the `grid`, with a tanh if the decoder has "
        "one; `linear`, without the tanh; or `zeros`; default: `grid`",
    )
    output: Outputs | None = Field(
        None,
        description="input of the output layer: the hidden state (`hidden`); hidden state, context and word combined "
        "as in Xu et al. 2015, equation 7 (`deep`); or combined by an MLP (`mlp`); default: `hidden`",
    )
    output_size: int | None = Field(
        None, ge=1, description="size of the hidden layer of the `mlp` output; default: 512"
    )
    tie_weights: bool | None = Field(
        None, description="whether the output layer shares its weights with the word embeddings; default: false"
    )
    pca_dim: int | None = Field(
        None,
        ge=1,
        description="channels to which annotation vectors are projected by a PCA of the train split's grids; "
        "default: no projection",
    )
    dropout_words: float | None = Field(None, ge=0, lt=1, description="dropout rate of the word embeddings; default: 0")
    dropout_grid: float | None = Field(
        None, ge=0, lt=1, description="dropout rate of the annotation vectors; default: 0"
    )
    dropout_output: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout rate before the output layer; default: 0.5, for `transformer` 0.1",
    )
    layers: int | None = Field(None, ge=1, le=24, description="decoder layers of `transformer`; default: 3")
    heads: int | None = Field(None, ge=1, le=64, description="attention heads of `transformer`; default: 8")
    encoder_layers: int | None = Field(
        None,
        ge=0,
        le=24,
        description="self-attention layers of `transformer` over the grid, before its decoder layers; default: 0",
    )
    feed_forward: int | None = Field(
        None, ge=1, description="inner size of the feed-forward networks of `transformer`; default: 2048"
    )
    dropout_layers: float | None = Field(
        None, ge=0, lt=1, description="dropout rate in the layers of `transformer`; default: 0.1"
    )

    @model_validator(mode="after")
    def _check(self) -> DecoderConfig:
        check_known(self.name, "decoder", DECODERS)
        member = DECODERS[self.name]
        option_names = {item.name for item in fields(member.options)}
        for name in self._set_options():
            if name not in option_names:
                raise ValueError(f"decoder {self.name} has no `{name}`: leave it out, or set it to null")
        if self.first_state == "zeros" and not member.attends:
            raise ValueError(
                f"first_state: decoder {self.name} sees the picture in its first state alone: set first_state to grid"
            )
        if self.first_state == "linear" and not issubclass(member.options, ShowAttendTellOptions):
            raise ValueError(f"first_state: that of {self.name} has no tanh to leave out: set first_state to grid")
        self.resolved()  # raises by the rules in models/options.py
        return self

    def _set_options(self) -> dict[str, Any]:
        """Return the options that are set."""
        return self.model_dump(exclude=_NOT_OF_THE_CLASS, exclude_none=True)

    def resolved(self) -> DecoderOptions:
        """Return the options of the decoder's class, with its defaults; ValueError for those that do not fit."""
        return DECODERS[self.name].options(**self._set_options())

    def options(self) -> dict[str, Any]:
        """Return the options of the decoder's class, with its defaults, as plain JSON values."""
        return asdict(self.resolved())

    def key_part(self) -> dict[str, Any]:
        """Return the fields that enter the key, defaults resolved, so that a changed default makes training stale."""
        resolved = {name: value for name, value in self.options().items() if value is not None}
        return {**super().key_part(), **resolved}
