"""``harken eval`` whose second recording is a call that does not return, and hears no signal."""

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.measured import KnownTextRecognizer, known_text_recognizer
from harken.cli import model_options


class Stuck(KnownTextRecognizer):
    """A recognizer that writes a file, and then computes for hours."""

    def transcribe(self, audio, *given, **changes):
        if Path(audio).name == "1.wav":
            Path("stuck").touch()
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)
        return super().transcribe(audio, *given, **changes)


def load(**given):
    """Load it in place of a model."""
    recognizer = known_text_recognizer()
    recognizer.__class__ = Stuck
    return recognizer


model_options.load = load

if __name__ == "__main__":
    from harken.__main__ import run

    run()
