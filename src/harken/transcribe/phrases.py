"""What Whisper writes where nobody speaks: the courtesies and credits that subtitles of silence had in its training.

Source: what users report (openai/whisper discussions 679 and 928, faster-whisper issue 506, whisper.cpp issues 1507 and
1724), and what the models here wrote for recordings without speech (docs/decisions/guard.md).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

SILENCE_PHRASES = {
    "en": (
        "Thank you", "Thank you very much", "Thank you so much", "Thank you for watching",
        "Thanks for watching", "Thank you so much for watching", "Thanks for listening",
        "Thank you for listening", "Please subscribe", "Please subscribe to my channel",
        "Like and subscribe", "See you next time", "See you in the next video",
        "I'll see you in the next video", "We'll be right back", "You", "Bye", "Bye bye", "Goodbye",
        "The end", "Silence", "Music", "Applause", "Laughter", "Foreign",
    ),
    "de": (
        "Vielen Dank", "Vielen Dank fürs Zuschauen", "Danke fürs Zuschauen", "Bis zum nächsten Mal",
        "Tschüss", "Danke",
    ),
    "fr": (
        "Merci", "Merci d'avoir regardé", "Merci d'avoir regardé cette vidéo",
        "Merci d'avoir regardé la vidéo", "Abonnez-vous", "À bientôt", "Au revoir", "Musique",
    ),
    "es": (
        "Gracias", "Muchas gracias", "Gracias por ver el video", "Gracias por ver", "Suscríbete",
        "Suscríbete al canal",
    ),
    "it": ("Grazie", "Grazie a tutti", "Grazie per aver guardato il video", "Grazie per la visione"),
    "pt": ("Obrigado", "Obrigada", "Obrigado por assistir", "Inscreva-se no canal", "Tchau"),
    "nl": ("Bedankt voor het kijken", "Dank u wel", "Dank je wel", "Tot de volgende keer"),
    "sv": ("Tack", "Tack för att du tittade", "Tack för att ni tittade"),
    "no": ("Takk for at du så på",),
    "da": ("Tak", "Tak for at I så med"),
    "fi": ("Kiitos", "Kiitos katsomisesta"),
    "pl": ("Dziękuję", "Dziękuję za uwagę", "Dzięki za obejrzenie", "Dziękuję za obejrzenie"),
    "cs": ("Děkuji", "Děkujeme za pozornost"),
    "hu": ("Köszönöm", "Köszönöm szépen", "Köszönöm, hogy megnézted"),
    "ro": ("Mulțumesc", "Vă mulțumim pentru vizionare"),
    "tr": ("Teşekkürler", "İzlediğiniz için teşekkür ederim", "Abone olmayı unutmayın"),
    "el": ("Ευχαριστώ", "Σας ευχαριστώ"),
    "ru": (
        "Спасибо", "Спасибо за просмотр", "Спасибо за внимание", "До новых встреч",
        "Подписывайтесь на канал",
    ),
    "uk": ("Дякую", "Дякую за перегляд", "Дякую за увагу"),
    "ar": ("شكرا", "شكرا للمشاهدة", "شكرا على المشاهدة", "اشتركوا في القناة"),
    "ja": (
        "ご視聴ありがとうございました", "ご視聴いただきありがとうございます",
        "ご視聴いただきありがとうございました", "最後までご視聴いただきありがとうございます",
        "ありがとうございました", "ありがとうございます", "おやすみなさい", "チャンネル登録お願いします",
        "チャンネル登録よろしくお願いします", "次の動画でお会いしましょう", "またね",
    ),
    "zh": (
        "谢谢", "谢谢大家", "谢谢观看", "感谢观看", "感谢收看", "谢谢收看", "多谢您收看", "謝謝",
        "謝謝大家", "謝謝觀看", "多謝您收看", "請不吝點贊訂閱轉發打賞支持明鏡與點點欄目",
        "请不吝点赞订阅转发打赏支持明镜与点点栏目", "下期再见", "我们下期再见",
    ),
    "ko": (
        "감사합니다", "시청해주셔서 감사합니다", "시청해 주셔서 감사합니다", "구독과 좋아요 부탁드립니다",
        "다음 영상에서 만나요",
    ),
    "vi": ("Cảm ơn các bạn đã theo dõi", "Hẹn gặp lại các bạn trong những video tiếp theo"),
    "id": ("Terima kasih", "Terima kasih telah menonton"),
}  # fmt: skip
"""By language. They may have been said."""

_SUBTITLE_CREDITS = re.compile(
    r"""amara\ org | dimatorzok | castingwords | zeoranger | btistudios | authorwave | jesper\ buhl | nicolai\ winther
    | johnyx | ghiền\ mì\ gõ | yoyo\ television | ai\ media
    | untertitel(ung)?\ (im\ auftrag )?\ ?(des|der|von)\ (zdf|swr|wdr|ard|br)\b
    | sous\ titrage\ (st|société\ radio\ canada) | sottotitoli\ .*\ qtss | altyazı\ m\ k$
    | субтитры\ (сделал|делал|создавал|создал|подогнал) | редактор\ субтитров | корректор\ а\ | ترجمة\ نانسي\ قنقر
    | 字幕志愿者 | 字幕志願者 | 字幕由.*提供 | 提供的字幕 | mbc\ 뉴스\ | 한글자막\ by | 자막\ 제공
    | ^продолжение\ следует$ | (subtitles|captions|transcription|transcribed|translation|subtitled)\ by\b""",
    re.VERBOSE,
)
"""Names of those who made subtitles: nobody says these."""


def is_silence_phrase(text: str) -> bool:
    """Whether a text is, as a whole, one that Whisper likes to write for silence."""
    return normalize_phrase(text) in _silence_phrases()


def is_subtitle_credit(text: str) -> bool:
    """Whether a text names those who made subtitles."""
    return _SUBTITLE_CREDITS.search(normalize_phrase(text)) is not None


def normalize_phrase(text: str) -> str:
    """Letters, marks and digits in small letters, words separated by one space."""
    letters = (
        char if unicodedata.category(char)[0] in "LMN" else " " for char in text.casefold().replace("'", "")
    )
    return " ".join("".join(letters).split())


@cache
def _silence_phrases() -> frozenset[str]:
    return frozenset(normalize_phrase(phrase) for phrases in SILENCE_PHRASES.values() for phrase in phrases)
