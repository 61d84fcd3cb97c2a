"""The captioner on onnxruntime, NumPy and Pillow: what goes into an exported model, but for the files that it shares.

Nothing here needs torch. Graphs and weights come from tasks/registry/exported/.
"""
