"""Words and stems: as in Lucene's English analyser, and single characters of languages without spaces."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rerank.util.words import STOP_WORDS, stem, stems, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" .,;! \n", []),
        ("Fleas live 3.5 years", ["fleas", "live", "3", "5", "years"]),
        ("call __init__ and os.path_join", ["call", "init", "and", "os", "path_join"]),
        ("l'été à Zürich", ["l", "été", "à", "zürich"]),
        ("l'e\u0301te\u0301 a\u0300 Zu\u0308rich", ["l", "été", "à", "zürich"]),
        ("蚤の寿命 of C++", ["蚤", "の", "寿", "命", "of", "c"]),
    ],
)
def test_words_are_runs_of_letters_and_digits_in_lower_case(text, found):
    assert words(text) == found


def test_stop_words_possessives_and_endings_are_left_out():
    assert stems("The flea's hopping, and the relational fleas' lives") == ("flea", "hop", "relat", "flea", "live")
    assert stems("Moon\u2019s S") == ("moon",)
    assert stems(" ".join(STOP_WORDS)) == stems("") == ()
    assert len(STOP_WORDS) == 33


def test_threads_stem_at_the_same_time():
    """The stemmer of the library keeps the word that it works on."""
    many = [f"{letters}ational{number}ing" for letters in ("rel", "oper", "sens") for number in range(400)]
    stem.cache_clear()
    one_by_one = [stem(word) for word in many]
    stem.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(stem, many)) == one_by_one
