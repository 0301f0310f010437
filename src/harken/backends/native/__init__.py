"""The compiled CPU engine: weights as integers, one call a window and one a step, the same bits on every processor.

The C library lies in ``kernel/``. `weights`, `matrices` and `packed_file` write what it reads, `library` loads it,
`encoder`, `decoder` and `session` call it.
"""

from harken.backends.native.backend import NativeBackend

__all__ = ["NativeBackend"]
