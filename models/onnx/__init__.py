"""The captioner without torch. A copy goes into every exported folder, with the files of `models/` that need no torch.

Graphs and weights come from tasks/captioner/exported/.
"""

import os

# Otherwise onnxruntime, once imported, writes a machine identifier to the cache folder and sends usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
