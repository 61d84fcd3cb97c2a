"""Grids -> captions, word by word; one file per family of decoders.

To add a decoder, write a file with a subclass of `base.Decoder` and add a line to `DECODERS`. This registry imports no
decoder, so that configs are checked without loading torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..options import (
    AttentionLSTMOptions,
    DecoderOptions,
    RecurrentOptions,
    ShowAttendTellOptions,
    TransformerOptions,
    UpDownOptions,
)


class Member(NamedTuple):
    """A registry entry: the class of a decoder and the class of its options.

    module: a module of this package, or a full dotted name. name: the class. options: what a config may set, with its
    defaults. fixed: arguments of the class whose values the decoder's name determines. attends: whether it attends to
    the grid before each word.
    """

    module: str
    name: str
    options: type[DecoderOptions]
    fixed: Mapping[str, Any] = {}
    attends: bool = True


DECODERS: dict[str, Member] = {
    "rnn": Member("rnn_and_lstm", "FirstStateDecoder", RecurrentOptions, {"cell": "rnn"}, attends=False),
    "lstm": Member("rnn_and_lstm", "FirstStateDecoder", RecurrentOptions, {"cell": "lstm"}, attends=False),
    "attention_lstm": Member("attention_lstm", "AttentionLSTM", AttentionLSTMOptions),
    "show_attend_tell": Member("show_attend_tell", "ShowAttendTell", ShowAttendTellOptions),
    "hard_attention": Member("hard_attention", "HardAttention", ShowAttendTellOptions),
    "up_down": Member("up_down", "UpDown", UpDownOptions),
    "transformer": Member("transformer", "Transformer", TransformerOptions),
}
