"""Prompts of RankLLM's form: token for token what its formula gives, once the profile of the model is used."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from rerank.config import load_config
from rerank.config.named import named_model
from rerank.models.encoder import Encoder
from rerank.profiles import load_profile
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template, load_template
from rerank.rankers.base import Ranker, rank_windows
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import load_models
from rerank.types import Passage
from tests.causal_lms import write_causal_lm
from tests.fakes import prepared_window, window_of
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
WINDOW = window_of("what jumps", [f"text {place}" for place in range(20)])
NAMES = "ABCDEFGHIJKLMNOPQRST"


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
    style = PromptStyle.model_validate(facts.prompt)
    return ListwiseRenderer(template(folder).with_style(style), tokenizer, 32_768, answer_tokens=1), names


@pytest.mark.parametrize(
    ("profile", "chat"), [("rank-zephyr", "zephyr"), ("first-zephyr", "zephyr"), ("first-mistral", "instruct")]
)
def test_prompts_over_difficult_texts(tmp_path, profile, chat):
    tokenizer = metaspace(chat)  # type: ignore[arg-type]
    renderer, names = renderer_and_names(profile, tmp_path, tokenizer)
    for titles in (TITLES, [""] * 4):
        passages = [
            Passage(str(place), f"{title} {text}" if title else text, title=title)
            for place, (title, text) in enumerate(zip(titles, TEXTS, strict=True))
        ]
        window = prepared_window(renderer, "how do fleas live", passages)
        found = renderer.prompt(window, names).token_ids
        assert found == expected_ids(tokenizer, window.query.text, TEXTS, names, titles)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("published") / "mistral", "mistral", metaspace("instruct"))


def served(checkpoint: Path, encoder: Encoder) -> Ranker:
    model = named_model(f"it=first-mistral:{checkpoint}") | {"template": "first"}
    return load_models(load_config(None, [model]).models[:1], ModelLoader(encoder, "cpu")).rankers["it"]


@torch.no_grad()
def formula(checkpoint: Path, prompt: list[int]) -> list[float]:
    """log softmax over the letters of the window."""
    vocabulary = AutoTokenizer.from_pretrained(checkpoint).get_vocab()
    logits = AutoModelForCausalLM.from_pretrained(checkpoint).eval()(torch.tensor([prompt])).logits[0, -1]
    return logits[[vocabulary[name] for name in NAMES]].log_softmax(0).tolist()


def test_scores_belong_to_the_bare_letters(checkpoint, encoder):
    ranker = served(checkpoint, encoder)
    window = prepared_window(ranker, WINDOW.query, WINDOW.passages)
    prompt = list(ranker.encode(window).prompts[0])
    (ranking,) = rank_windows(ranker, [window])
    assert list(ranking.scores) == pytest.approx(formula(checkpoint, prompt), abs=1e-5)
