"""A report in Markdown as one self-contained HTML page, for wide and narrow screens."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping

from markdown_it import MarkdownIt

#: Tables scroll inside their own container, and long words wrap, so that the page itself never scrolls sideways.
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:max-content}
th,td{padding:.2rem .7rem;border-bottom:1px solid #8884;vertical-align:top;overflow-wrap:normal}
th{font-weight:600;text-align:left}
td:not(:first-child):not(.text){white-space:nowrap}
td.text,td:first-child{max-width:22rem;overflow-wrap:break-word}
img{max-width:100%;height:auto;background:#fff}
details{border-bottom:1px solid #8884;padding:.3rem 0}summary{cursor:pointer}
"""


def html_page(markdown: str, title: str, images: Mapping[str, bytes] | None = None) -> str:
    """The page of a report.

    Sections with a heading of the third level become foldable.

    Args:
        images: contents of the PNG files to which the report links, by the name in the link.
    """
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    for name, content in (images or {}).items():
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{base64.b64encode(content).decode()}"')
    body = body.replace('<td style="text-align:left">', '<td class="text">')
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    body = re.sub(
        r"<h3>(.*?)</h3>(.*?)(?=<h[123]>|\Z)", r"<details><summary>\1</summary>\2</details>", body, flags=re.DOTALL
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
