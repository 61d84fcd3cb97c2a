"""Decoders: a grid of annotation vectors -> captions, word by word.

Adding one: a file with a class that keeps the contract of `base.Decoder`, and a line here. The registry
imports nothing, so that configs are checked without loading torch.
"""

from typing import NamedTuple


class Member(NamedTuple):
    """Where a decoder is, and which options its class takes beside the sizes of grid and vocabulary."""

    module: str
    name: str
    options: tuple[str, ...]


_SHARED = ("embedding", "hidden", "dropout_words", "dropout_grid", "dropout_output", "deep_output")

DECODERS: dict[str, Member] = {
    "show_attend_tell": Member("show_attend_tell", "ShowAttendTell", (*_SHARED, "attention")),
    "attention_lstm": Member("attention_lstm", "AttentionLSTM", _SHARED),
}
