"""Stage `remember`: a captioner's memory of its training pictures; and how their captions rank captions."""
