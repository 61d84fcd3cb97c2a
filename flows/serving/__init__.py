"""`attend serve`: a captioner over HTTP, with a web page to try it."""
