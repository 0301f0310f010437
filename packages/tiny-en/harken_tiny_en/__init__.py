"""The weights of Whisper tiny.en in 8-bit integers, for harken: the folder ``model``, in CTranslate2's format."""
