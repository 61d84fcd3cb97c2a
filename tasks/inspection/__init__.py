"""Pictures and captions of a data set that deserve a look, found by the model that was trained on it."""
