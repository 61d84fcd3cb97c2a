"""Pictures and captions of a data set that are worth a look, found by the model that was trained on it."""
