"""People's reviews of captions: the questions to ask, and the results of the answers."""
