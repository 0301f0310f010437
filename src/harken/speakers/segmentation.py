"""Segmentation: which of up to three local speakers is active in each frame of a window of ten seconds.

Source: pyannote/segmentation-3.0; Plaquet and Bredin 2023, "Powerset multi-class cross entropy loss for neural speaker
diarization": each frame has one class, a set of at most two of the window's speakers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from harken.contract import Floats
from harken.errors import CheckpointError, HarkenError
from harken.types import SAMPLE_RATE

WINDOW_SAMPLES = 10 * SAMPLE_RATE
"""Samples of the windows that the model was trained on."""
N_LOCAL_SPEAKERS = 3
STEP_SAMPLES = 270
"""Samples from one frame to the next."""
N_FRAMES = 589
"""Frames of a window."""
FIRST_CENTRE_SAMPLES = 495.5
"""Centre of the first frame, half of the 991 samples that it sees."""
POWERSET = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.bool_)
"""Active local speakers of each class."""

Activity = NDArray[np.bool_]
"""Shape (N_FRAMES, N_LOCAL_SPEAKERS): True where a local speaker speaks."""


class SegmentationModel:
    """The segmentation model in ONNX Runtime.

    Parameters
    ----------
    path : Path
        The ONNX file.
    threads : int

    Raises
    ------
    CheckpointError
        If the file is missing or damaged, or holds another model.
    """

    def __init__(self, path: Path, threads: int) -> None:
        try:
            self._graph = OnnxRuntimeGraph(path, threads)
            self.activities(np.zeros((1, WINDOW_SAMPLES), np.float32))
        except (HarkenError, MemoryError):
            raise
        except Exception as error:  # the runtime has no class of its own for them
            raise CheckpointError(
                f"{path}: is damaged, or not segmentation-3.0 ({str(error).splitlines()[0][:200]})"
            ) from error

    def activities(self, windows: Floats) -> NDArray[np.bool_]:
        """Return who is active when.

        Parameters
        ----------
        windows : ndarray of shape (n, WINDOW_SAMPLES), float32, 16 kHz

        Returns
        -------
        ndarray of shape (n, N_FRAMES, N_LOCAL_SPEAKERS), bool
            Speakers have no order, and none from one window to the next.
        """
        log_probabilities = np.empty((len(windows), N_FRAMES, len(POWERSET)), np.float32)
        self._graph({"input": windows[:, None]}, {"output": log_probabilities})
        activities: NDArray[np.bool_] = POWERSET[log_probabilities.argmax(axis=-1)]
        return activities
