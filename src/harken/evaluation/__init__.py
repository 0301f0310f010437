"""Evaluation of engines: error rates against reference texts, speed, and latency of live sessions.

Error rates need the extra ``harken[eval]``, which is imported on first use.
"""

from harken.evaluation.evaluate import evaluate

__all__ = ["evaluate"]
