"""A captioner's export to ONNX."""
