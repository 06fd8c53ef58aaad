"""Hostile queries, ids, titles, texts, model names and judgements in a browser: shown as written, and nothing more.

On a page that took them for markup, for an address or for a script, they would run a script or ask another origin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from rerank.collections import open_collection
from rerank.rankers.identity import IdentityRanker
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from tests.eval.data import judged_collection, write
from tests.fakes import NumberRanker
from tests.rerank.integrations.inspector.browser.conftest import Tab, new_tab
from tests.serving import HTTP, http_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

pytestmark = pytest.mark.browser

#: Nothing answers there; a page that asked it would be seen to ask.
ELSEWHERE = "http://elsewhere.invalid"
#: Texts by what they try.
HOSTILE = {
    "script": "<script>window.hacked=1</script>",
    "end of a script": "</script><script>window.hacked=1</script>",
    "handler": '"><img src=x onerror="window.hacked=1">',
    "picture elsewhere": f'<img src="{ELSEWHERE}/a.png"><iframe src="{ELSEWHERE}"></iframe>',
    "style elsewhere": f"<style>@import '{ELSEWHERE}/a.css'; *{{background:url({ELSEWHERE}/b.png)}}</style>",
    "address": "javascript:window.hacked=1",
    "link": '<a href="javascript:window.hacked=1" id="hostile">x</a>',
    "page elsewhere": f'<meta http-equiv="refresh" content="0;url={ELSEWHERE}"><base href="{ELSEWHERE}/">',
    "templates": "{{constructor.constructor('window.hacked=1')()}} ${window.hacked=1} <%= window.hacked=1 %> #{1}",
    "drawing": "<svg><set attributeName=onmouseover to=window.hacked=1><use href='data:image/svg+xml,x#a'/></svg>",
    "quotes": "' \" ` ]]> --> */ \\u003cscript\\u003e &lt;b&gt; %3Cscript%3E",
    "right to left": "safe \u202egnp.exe\u202d \u2066\u2067 \u200f end",
    "properties": "__proto__ constructor toString hasOwnProperty",
}
#: The same without white space, as ids must be.
IDS = {name: "".join(text.split()) for name, text in HOSTILE.items()} | {
    name: name for name in ("__proto__", "constructor", "toString", "hasOwnProperty", "valueOf")
}


@dataclass
class Watched:
    """A tab, and what its page tried.

    Attributes:
        elsewhere: requests to other origins than the page's.
        dialogs: alerts and the like.
    """

    tab: Tab
    elsewhere: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    @property
    def page(self) -> Page:
        return self.tab.page

    def assert_harmless(self) -> None:
        """Nothing ran, nothing was asked elsewhere, the policy was never needed, and no element came from a text."""
        assert self.page.evaluate("[window.hacked, Object.prototype.hacked]") == [None, None]
        assert self.page.evaluate("window.violations") == []
        assert (self.elsewhere, self.dialogs) == ([], [])
        assert self.page.locator("img, iframe, base, style, object, embed, #hostile, set, use").count() == 0
        assert self.page.locator("script").count() == 1
        assert self.page.locator("a").count() == 1, "the link to the result is the only one"
        assert self.page.url.startswith(f"{self.tab.base}/")


@pytest.fixture(scope="module")
def live_base(encoder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service whose index, models and judgements are hostile.

    Its collection has a passage for each id, a query for each text, and grades for half of the ids.
    """
    folder = tmp_path_factory.mktemp("hostile")
    texts = zip(IDS.values(), [*HOSTILE.values()] * 2, strict=False)
    rows = [{"_id": id_, "title": text, "text": f"{text} water {n}"} for n, (id_, text) in enumerate(texts)]
    corpus = folder / "rows.jsonl"
    write(corpus, *rows)
    queries = {f"q{number}": f"water {text}" for number, text in enumerate(HOSTILE.values())}
    grades = {query_id: dict.fromkeys([*IDS.values()][::2], 1) for query_id in queries}
    judged = judged_collection(folder / "judged", corpus, queries, grades)
    build_index(open_collection(str(judged)), folder / "index", encoder)
    number = NumberRanker(reads_instruction=True)
    rankers = {"number": number, **{text: IdentityRanker() for text in HOSTILE.values()}}
    http = HTTP | {"qrels": str(judged)}
    with http_service(rankers, Index(folder / "index", encoder), http=http) as served:
        yield f"http://{served.http.address}"


@pytest.fixture
def live(chromium: Browser, live_base: str) -> Iterator[Watched]:
    """A tab; every request, dialog and report of the content security policy is kept."""
    for tab in new_tab(chromium, live_base):
        found = Watched(tab)

        def keep(request: Request, found: Watched = found) -> None:
            if not request.url.startswith((f"{live_base}/", "about:blank")):
                found.elsewhere.append(request.url)

        tab.page.context.on("request", keep)
        tab.page.on("dialog", lambda dialog, found=found: (found.dialogs.append(dialog.message), dialog.dismiss()))
        tab.page.add_init_script(
            "window.violations = []; document.addEventListener('securitypolicyviolation',"
            " (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`))"
        )
        yield found


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_index_and_query_are_shown_as_written(live, text):
    page = live.tab.open(query=f"water {text}", a__stage="bm25", compare=1, b__model=text, all=1)
    live.tab.wait_for_title("water")
    assert sorted(live.tab.names("after")) == sorted(IDS.values())
    assert text.split()[0] in page.locator(".summary h2").last.text_content()
    for row in page.locator(".order.after button.passage").all():
        row.click()
        dialog = page.get_by_role("dialog")
        assert dialog.locator("h2").text_content() in IDS.values()
        page.keyboard.press("Escape")
    live.assert_harmless()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pasted_passages_and_links_are_shown_as_written(live, text):
    lines = [{"doc_id": doc_id, "text": f"{text} {number}"} for number, doc_id in enumerate(IDS.values())]
    pasted = "\n".join(map(json.dumps, lines))
    hostile = {"instruction": text, "view": text, "all": "1", "a__strategy": "", "a__stage": text}
    page = live.tab.open(source="pasted", query=text, passages=pasted, a__model="number", **hostile)
    assert sorted(live.tab.names("after")) == sorted(IDS.values())
    assert page.locator(".order.after .text").first.text_content().startswith(" ".join(text.split()))
    live.assert_harmless()
