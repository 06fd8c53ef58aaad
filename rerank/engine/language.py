"""Recognises texts in other languages than English by their script and their most frequent words.

It serves to warn about models that read English only. So it is cheap, and silent in doubt: on keywords, code and names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

#: What is read of a list: so many characters of the query and of each of the first passages.
_CHARS, _PASSAGES = 300, 5
_WORD = re.compile(r"[^\W\d_]{2,}")
#: In a piece of code, or an address, whose words belong to no language.
_CODE = re.compile(r"[{}=<>$@`_\\/]|\w[.(]\w")

_ENGLISH = (
    "the of and to in is a an that it its for on are was were with as be been by at from this these those or not what "
    "how which who when where why does do did can could would should will has have had his her their they you your we "
    "our my me no so than then there if into about between after before during most more some any all other such use "
    "only over also just very here there"
)
#: Frequent words of other languages that are English words, names or abbreviations, too.
_AMBIGUOUS = (
    "die war hat man den am son comment plus tout sur pour par come door met ten per con mi est van var med pode ben "
    "sen"
)
#: Those that stand in names of people, places and works. They alone tell nothing.
_IN_NAMES = "de la le les el los las del du des da dos di della das der von zu al il lo y"
#: The most frequent words of each language.
_FREQUENT = {
    "German": "und ist nicht ein eine einen einem einer eines der das dem mit für auf wird werden wie sich zu zum "
    "zur oder ich sind haben auch bei nach über warum wann welche welcher welches können kann mein meine wurde durch "
    "aus wenn man noch nur im vom es ihr wir sie gibt macht muss",
    "French": "le la les et est dans un une que qui pour pas sur avec ne ce cette sont du au aux quelle quel quels "
    "quelles quand où pourquoi comment combien je vous nous il elle être fait mon ma ses leur leurs qu faut peut "
    "plus entre chez sans donc",
    "Spanish": "el la los las de que y en un una es por con para no se su al lo como cómo qué cuál cuáles cuándo "
    "dónde cuánto cuántos más pero está están son del sus esta este puede hay mi muy también entre sobre desde",
    "Italian": "il lo la gli di che e un una è per non si con del della dei delle nel nella come sono quando dove "
    "perché quale quali chi più anche cosa quanto quanti questo questa suo alla al dal ha può mio tra",
    "Portuguese": "o os as um uma de que e em não é para com por se na no do da dos das como qual quais quando onde "
    "mais mas foi são ao pela pelo seu sua você está porque quanto quantos também pode meu minha entre",
    "Dutch": "de het een van en is dat niet op te zijn voor met als aan er om hoe wat waar wanneer waarom welke wordt "
    "worden naar bij ook uit heeft hebben kan ik je mijn deze door maar nog lang veel",
    "Polish": "nie się jest na że do jak to co czy jakie jaki jaka gdzie kiedy dlaczego dla po od przez oraz są był "
    "była być może ile mój który która które ten ta tym jego lub przy można",
    "Turkish": "bir ve bu için ne nasıl nedir neden nerede hangi kaç mi mı mu mü ile da de olan olarak var yok çok "
    "daha en gibi kadar ben sen benim değil olur eder sonra",
    "Swedish": "och att det som är en av för på med inte den till jag om ett hur vad var när varför vilken kan har "
    "eller från hos under också blir många länge min ska",
}
_ENGLISH_WORDS, _WORDS_IN_NAMES = frozenset(_ENGLISH.split()), frozenset(_IN_NAMES.split())
#: Word → the languages that it tells from English.
_LANGUAGES_OF: dict[str, list[str]] = defaultdict(list)
for _language, _words in _FREQUENT.items():
    for _word in {*_words.split()} - _ENGLISH_WORDS - {*_AMBIGUOUS.split()}:
        _LANGUAGES_OF[_word].append(_language)

#: First and last letter of a script → its name.
_SCRIPTS: Sequence[tuple[int, int, str]] = (
    (0x0370, 0x03FF, "Greek"),
    (0x0400, 0x052F, "Cyrillic"),
    (0x0590, 0x05FF, "Hebrew"),
    (0x0600, 0x077F, "Arabic"),
    (0x0900, 0x0DFF, "Indic"),
    (0x0E00, 0x0E7F, "Thai"),
    (0x3040, 0x30FF, "Japanese"),
    (0x3400, 0x9FFF, "Chinese"),
    (0xAC00, 0xD7AF, "Korean"),
)
_OTHER_LETTER = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")
#: Fewer letters of another script are a symbol. From 3040 on, a letter is a syllable or a word, and counts twice.
_MIN_LETTERS, _SYLLABLES = 4, 0x3040
#: In a query, so many different frequent words of a language tell it, one of them in no names, if English has fewer.
_MIN_WORDS = 2
#: In passages, so many of their words, and such a share, which also occur twice as often as the English ones.
_MIN_FOUND, _MIN_SHARE = 3, 0.1


def language_warning(reads: str, query: str, passages: Iterable[str]) -> str:
    """Warns that a model gets texts in a language that it does not read; empty if nothing suggests it.

    Args:
        reads: the ISO 639-1 code of the only language that the model reads; empty: not known. Only "en" gives warnings.
        query, passages: see `foreign_language`.
    """
    what, language = foreign_language(query, passages) if reads == "en" else ("", "")
    if not language:
        return ""
    seems = "query seems" if what == "query" else "documents seem"
    return (
        f"the model reads English only, and the {seems} to be in {language}, so that the order may be wrong; serve a "
        "multilingual model, such as the cross-encoder BAAI/bge-reranker-v2-m3, by --model NAME=FOLDER"
    )


def foreign_language(query: str, passages: Iterable[str]) -> tuple[str, str]:
    """ "query" or "documents", whichever is not in English, and its language or script; two empty texts if both are.

    Args:
        query: its beginning is read.
        passages: the beginnings of the first ones are read.
    """
    begin = query[:_CHARS]
    if found := _script(begin) or _of_words(begin, _tells_query):
        return "query", found
    shown = "\n".join(passage[:_CHARS] for passage in islice(passages, _PASSAGES))
    if found := _script(shown) or _of_words(shown, _tells_passages):
        return "documents", found
    return "", ""


def _script(text: str) -> str:
    """Names the script of most letters; empty if that is Latin."""
    others = [ord(letter) for letter in _OTHER_LETTER.findall(text)]
    if sum(1 + (code >= _SYLLABLES) for code in others) < _MIN_LETTERS:
        return ""
    if 2 * len(others) <= sum(map(str.isalpha, text)):
        return ""
    names = [next((name for low, high, name in _SCRIPTS if low <= code <= high), "another") for code in others]
    most = "Japanese" if "Japanese" in names else max(set(names), key=names.count)
    return most if most in ("Greek", "Hebrew", "Thai", "Japanese", "Chinese", "Korean") else f"{most} script"


def _of_words(text: str, tells: Callable[[Sequence[str], int, int], bool]) -> str:
    """Names the language of most frequent words in the text; empty if they may as well be English."""
    pieces = text.lower().split()
    words = _WORD.findall(" ".join(piece for piece in pieces if piece.isalpha() or not _CODE.search(piece)))
    english = sum(map(_ENGLISH_WORDS.__contains__, words))
    found: dict[str, list[str]] = {}
    for word in words:
        for language in _LANGUAGES_OF.get(word, ()):
            found.setdefault(language, []).append(word)
    most = max(found, key=lambda language: len(found[language]), default="")
    return most if most and tells(found[most], english, len(words)) else ""


def _tells_query(found: Sequence[str], english: int, words: int) -> bool:
    told = {*found} - _WORDS_IN_NAMES
    return bool(told) and len({*found}) >= _MIN_WORDS and len(found) > english


def _tells_passages(found: Sequence[str], english: int, words: int) -> bool:
    return len(found) >= max(_MIN_FOUND, _MIN_SHARE * words) and len(found) > 2 * english
