"""Prompts of RankLLM's form: token for token what its formula gives, once the profile of the model is used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from rerank.profiles import load_profile
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template, load_template
from rerank.types import Passage, Query, Window
from tests.small_tokenizers import metaspace

ftfy = pytest.importorskip("ftfy")

#: In the form of RankLLM's templates, with other words.
PARTS = {
    "system_message": "You order texts.",
    "prefix": "These are {num} texts, each with its identifier in []. Order them for the search query: {query}.\n\n",
    "body": "[{rank}] {candidate}\n",
    "suffix": "\nSearch Query: {query}.\nOrder the {num} texts above, as in {example}. Only write the order.",
}
#: Texts as collections have them: broken encodings, identifiers, markup of web pages, long ones.
TEXTS = [
    "It donâ€™t  matter [3] which\nflea. ",
    "<p>Lyrics</p> [MUSIC] plays, <br> [Verse 1: A] see [12] and [2019]; it costs 5 < 6 > 4.",
    "naÃ¯ve café “quoted” ﬁne [LVH] [citation needed] email me <someone@example.org>",
    "word " * 400,
]


#: Titles of TEXTS, as BEIR's passages have; the first has none.
TITLES = ["", "Lyrics of a song", "naÃ¯ve  {text} art [2]", "A {title} of words"]


def template(folder: Path) -> Template:
    path = folder / "template.yaml"
    path.write_text(json.dumps(PARTS), encoding="utf-8")
    return load_template(str(path))


def expected_ids(
    tokenizer: PreTrainedTokenizerBase, query: str, texts: list[str], names: list[str], titles: list[str]
) -> list[int]:
    """The formula of RankLLM (99f70f1): repaired, cut at 300 words, numbers in brackets put in parentheses."""
    contents = [f"Title: {title} Content: {text}" if title else text for title, text in zip(titles, texts, strict=True)]
    shown = [" ".join(ftfy.fix_text(content.strip()).split()[:300]) for content in contents]
    shown = [re.sub(r"\[(\d+|[A-Z])\]", r"(\1)", text) for text in shown]
    fields = {"num": len(texts), "query": query, "example": f"[{names[1]}] > [{names[0]}]"}
    bodies = (PARTS["body"].format(rank=name, candidate=text) for name, text in zip(names, shown, strict=False))
    user = PARTS["prefix"].format(**fields) + "".join(bodies) + PARTS["suffix"].format(**fields)
    if "raise_exception" in tokenizer.chat_template:  # no system role
        messages = [{"role": "user", "content": f"{PARTS['system_message']}\n{user}"}]
    else:
        messages = [{"role": "system", "content": PARTS["system_message"]}, {"role": "user", "content": user}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, verbose=False)["input_ids"]


def renderer_and_names(
    profile: str, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> tuple[ListwiseRenderer, list[str]]:
    facts = load_profile(profile)
    names = list("ABCDEFGHIJKLMNOPQRST") if facts.identifiers == "letters" else [str(n) for n in range(1, 21)]
    style = PromptStyle(**facts.prompt)  # type: ignore[arg-type]
    return ListwiseRenderer(template(folder).with_style(style), tokenizer, 32_768, answer_tokens=1), names


def found_ids(
    renderer: ListwiseRenderer, query: str, texts: list[str], names: list[str], titles: list[str]
) -> list[int]:
    passages = [
        Passage(str(place), f"{title} {text}" if title else text, title=title)
        for place, (title, text) in enumerate(zip(titles, texts, strict=True))
    ]
    prepared = renderer.prepare(Query(query), passages)
    return renderer.prompt(Window(prepared.query, prepared.passages), names).token_ids


@pytest.mark.parametrize(
    ("profile", "chat"), [("rank-zephyr", "zephyr"), ("first-zephyr", "zephyr"), ("first-mistral", "instruct")]
)
def test_prompts_over_difficult_texts(tmp_path: Path, profile: str, chat: str) -> None:
    tokenizer = metaspace(chat)  # type: ignore[arg-type]
    renderer, names = renderer_and_names(profile, tmp_path, tokenizer)
    for titles in (TITLES, [""] * 4):
        found = found_ids(renderer, "how do fleas live", TEXTS, names, titles)
        assert found == expected_ids(tokenizer, "how do fleas live", TEXTS, names, titles)
