"""The weights of Whisper tiny.en in 8-bit integers, for harken: the folder ``model``, a GGUF file."""
