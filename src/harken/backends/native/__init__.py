"""The CPU engine with a compiled decoder: 8-bit weights in blocks, one call a step, the same bits on every processor.

The encoder is that of `harken.backends.onnx`. The decoder is the C library of ``kernel/``; `packing` and `packed_file`
write what it reads, `library` loads it, `decoder` and `session` call it.
"""

from harken.backends.native.backend import NativeBackend

__all__ = ["NativeBackend"]
