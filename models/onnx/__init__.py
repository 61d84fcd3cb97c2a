"""The captioner without torch. A copy goes into every exported folder, with the files of `models/` that need no torch.

Nothing here needs torch. Graphs and weights come from tasks/captioner/exported/.
"""

import os

# From its first import on, onnxruntime writes an identifier of the machine to the cache folder, and sends usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
