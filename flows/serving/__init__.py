"""`attend serve`: a registered captioner over HTTP, with a web page to try it."""
