"""Stage `remember`: what a captioner keeps of its training pictures; and how their captions rank captions."""
