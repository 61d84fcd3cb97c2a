"""Recurrent decoders: an RNN or LSTM cell that may attend to the grid before each word.

`decoder` has the cell, its step, teacher forcing and inference; `deferred_gradients` computes the gradient of the
cell's weights under teacher forcing. The decoders themselves are subclasses of `RecurrentDecoder` in the folder above.
"""

from .decoder import LSTMState, RecurrentDecoder, lstm_cell

__all__ = ["LSTMState", "RecurrentDecoder", "lstm_cell"]
