"""`attend serve`: a registered captioner over HTTP, and a page to try it on."""
