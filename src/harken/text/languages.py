"""The languages of Whisper, in the order of their tokens in the vocabulary."""

from __future__ import annotations

from harken.errors import OptionError

#: Code to name, in vocabulary order (openai-whisper tokenizer.py, `LANGUAGES`). Models before large-v3
#: have the first 99; large-v3 added Cantonese.
LANGUAGES = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean",
    "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish", "ca": "catalan",
    "nl": "dutch", "ar": "arabic", "sv": "swedish", "it": "italian", "id": "indonesian", "hi": "hindi",
    "fi": "finnish", "vi": "vietnamese", "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay",
    "cs": "czech", "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian", "la": "latin",
    "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian",
    "lv": "latvian", "bn": "bengali", "sr": "serbian", "az": "azerbaijani", "sl": "slovenian",
    "kn": "kannada", "et": "estonian", "mk": "macedonian", "br": "breton", "eu": "basque",
    "is": "icelandic", "hy": "armenian", "ne": "nepali", "mn": "mongolian", "bs": "bosnian",
    "kk": "kazakh", "sq": "albanian", "sw": "swahili", "gl": "galician", "mr": "marathi", "pa": "punjabi",
    "si": "sinhala", "km": "khmer", "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans",
    "oc": "occitan", "ka": "georgian", "be": "belarusian", "tg": "tajik", "sd": "sindhi", "gu": "gujarati",
    "am": "amharic", "yi": "yiddish", "lo": "lao", "uz": "uzbek", "fo": "faroese", "ht": "haitian creole",
    "ps": "pashto", "tk": "turkmen", "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit",
    "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan", "tl": "tagalog", "mg": "malagasy",
    "as": "assamese", "tt": "tatar", "haw": "hawaiian", "ln": "lingala", "ha": "hausa", "ba": "bashkir",
    "jw": "javanese", "su": "sundanese", "yue": "cantonese",
}  # fmt: skip

#: Other names of some languages (openai-whisper tokenizer.py, `TO_LANGUAGE_CODE`); `jv` is the ISO 639
#: code of the vocabulary's `jw`.
ALIASES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb",
    "pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si",
    "castilian": "es", "mandarin": "zh", "jv": "jw",
}  # fmt: skip

#: Languages written without spaces, which are split into words between characters
#: (openai-whisper tokenizer.py, `Tokenizer.split_to_word_tokens`).
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

_CODES = {code: code for code in LANGUAGES} | {name: code for code, name in LANGUAGES.items()} | ALIASES


def to_language_code(language: str, *, option: str = "language") -> str:
    """Find the code of a language given by code, name or alias, in any case.

    Parameters
    ----------
    language : str
        Such as ``"de"``, ``"German"`` or ``"castilian"``.
    option : str
        Name of the option that it comes from, for the error.

    Returns
    -------
    str
        A key of `LANGUAGES`.

    Raises
    ------
    OptionError
        If no language has that code or name; the message names the nearest ones.
    """
    code = _CODES.get(language.strip().lower())
    if code is None:
        raise OptionError(option, language, _allowed_languages(language))
    return code


def _allowed_languages(language: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(language.strip().lower(), _CODES, n=3)
    nearest = " or ".join(f"{_CODES[name]} ({LANGUAGES[_CODES[name]]})" for name in close)
    allowed = f"one of {', '.join(LANGUAGES)} or its English name"
    return f"{allowed}; nearest: {nearest}" if close else allowed
