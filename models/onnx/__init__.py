"""The captioner without torch. A copy goes into every exported folder, with the files of `models/` that need no torch.

Nothing here needs torch. Graphs and weights come from tasks/captioner/exported/.
"""
