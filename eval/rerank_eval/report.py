"""The report of an evaluation, in Markdown: what was measured, what the differences are worth, what it cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from markdown_it import MarkdownIt

from rerank_eval.experiment import Result
from rerank_eval.measures import MAIN
from rerank_eval.orders import ORIGINAL, Order
from rerank_eval.statistics import Comparison, compare, holm, interval, non_inferiority, paired_differences

FIRST_STAGE, ORACLE = "first stage", "oracle"

_COST = "At once: queries under way. Times are the caller's, the way there and back included; the rest, means a query."

#: system → order → mean nDCG@10
ByOrder = Mapping[str, Mapping[Order, float]]


def markdown(
    title: str,
    results: Sequence[Result],
    bound: Result,
    by_order: ByOrder,
    settings: Mapping[str, object],
    margin: float = 0.0,
    seed: int = 0,
    plots: Sequence[str] = (),
) -> str:
    """The whole report. The first result is what the others are compared with; `results` are not empty.

    Args:
        bound: what no order of the same candidates exceeds; nothing is compared with it.
        by_order: empty, or with a row `FIRST_STAGE`, for candidates in several orders.
        margin: of the non-inferiority test; 0: none.
        plots: files beside the report.
    """
    shown = results if bound.name in [result.name for result in results] else [*results, bound]
    parts = [f"# {title}", _measures(shown), _comparison(results, margin, seed)]
    if by_order:
        parts.append(_orders(by_order))
    parts += [_efficiency(results), *_remarks(results), *(f"![{name}]({name})" for name in plots), _settings(settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def html(text: str) -> str:
    """A report in Markdown as a page."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    style = "body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em}img{max-width:100%}"
    return f'<!doctype html><meta charset="utf-8"><title>Evaluation</title><style>{style}</style>\n{body}'


def comparisons(results: Sequence[Result], seed: int = 0) -> list[tuple[Result, Comparison, float]]:
    """Each but the first against the first by nDCG@10, with Holm's p of the t-tests over all of them."""
    reference, others = results[0], results[1:]
    found = [compare(other.report.values(), reference.report.values(), seed) for other in others]
    return list(zip(others, found, holm([comparison.t_p for comparison in found]), strict=True))


def order_shares(by_order: ByOrder) -> dict[str, float]:
    """For each system, how much of the first stage's order is in its result, over all other orders together.

    (its nDCG@10 on the original order - that on another) / (the same of the first stage): 1 for a system that changes
    nothing, 0 for one whose result depends on the passages alone.
    """
    stage = by_order.get(FIRST_STAGE, {})
    if ORIGINAL not in stage:
        return {}
    others = [order for order in stage if order != ORIGINAL]
    given = sum(stage[ORIGINAL] - stage[order] for order in others)
    if not given:
        return {}
    return {name: sum(row[ORIGINAL] - row[order] for order in others) / given for name, row in by_order.items()}


def order_lines(by_order: ByOrder) -> list[str]:
    """One line a system that is neither the first stage nor the bound, for the screen."""
    shares = {name: share for name, share in order_shares(by_order).items() if name not in (FIRST_STAGE, ORACLE)}
    return [f"{name}: {share:.0%} of what the first stage's order is worth is in it" for name, share in shares.items()]


def _measures(results: Sequence[Result]) -> str:
    names = list(results[0].report.mean)
    rows = [
        [result.name, *(_mean_of(result, name) for name in names), _interval(interval(result.report.values()))]
        for result in results
    ]
    queries = len(results[0].report.per_query)
    return f"Means over {queries} judged queries.\n\n" + markdown_table(["system", *names, f"{MAIN}, 95 %"], rows)


def _mean_of(result: Result, name: str) -> str:
    return f"{result.report.mean[name]:.4f}"


def _comparison(results: Sequence[Result], margin: float, seed: int) -> str:
    if len(results) < 2:
        return ""
    reference = results[0]
    found = comparisons(results, seed)
    head = ["system", "difference", "95 %", "p (t)", "p (permutation)", "p (Holm)", "W/T/L", "could be seen"]
    rows = [
        [
            other.name,
            f"{c.difference:+.4f}",
            _interval(c.interval, sign="+"),
            shown_p(c.t_p),
            shown_p(c.permutation_p),
            shown_p(adjusted),
            f"{c.wins}/{c.ties}/{c.losses}",
            f"{c.smallest_detectable:.4f}",
        ]
        for other, c, adjusted in found
    ]
    if margin:
        head.append(f"p (not worse by {margin})")
        for row, (other, _, _) in zip(rows, found, strict=True):
            differences = paired_differences(other.report.values(), reference.report.values())
            row.append(shown_p(non_inferiority(differences, margin)))
    return (
        f"## {MAIN} against {reference.name}\n\n{markdown_table(head, rows)}\n\n"
        f"Paired, two-sided, {len(reference.report.per_query)} queries; Holm over {len(rows)} comparisons. “Could be "
        "seen”: the smallest true difference that so many queries, differing as much as these do, show at 5 % four "
        "times in five. A smaller one that is not significant says nothing."
    )


def _orders(by_order: ByOrder) -> str:
    groups = [
        (kind, list(orders))
        for kind, orders in groupby(by_order[FIRST_STAGE], lambda order: order.name.partition("-")[0])
    ]
    shares = order_shares(by_order)
    rows = [
        [
            name,
            *(_over(row[order] for order in orders) for _, orders in groups),
            f"{shares[name]:.0%}" if name in shares else "–",
        ]
        for name, row in by_order.items()
    ]
    return (
        f"## How much is the first stage's order\n\n"
        f"{markdown_table([f'{MAIN} by order of the candidates', *(kind for kind, _ in groups), 'share'], rows)}\n\n"
        "Share: what a worse order of the same candidates costs the system, by what it costs the first stage. 100 %: "
        "the system hands its input's order on; 0 %: the order does not matter to it, as to the oracle, which sorts by "
        "the judgements."
    )


def _over(values: Iterable[float]) -> str:
    found = list(values)
    spread = f" ({min(found):.4f} to {max(found):.4f})" if len(found) > 1 else ""
    return f"{fmean(found):.4f}{spread}"


def _efficiency(results: Sequence[Result]) -> str:
    rows = [
        [
            result.name,
            str(load),
            *(f"{value:,.1f}" for value in (e.p50_ms, e.p95_ms, e.p99_ms)),
            f"{e.queries_per_s:,.2f}",
            *(f"{value:,.1f}" for value in (e.windows, e.rounds, e.tokens)),
        ]
        for result in results
        for load, e in result.costs.items()
    ]
    head = ["system", "at once", "p50 ms", "p95 ms", "p99 ms", "queries/s", "windows", "rounds", "tokens"]
    return f"## Cost\n\n{markdown_table(head, rows)}\n\n{_COST}" if rows else ""


def _remarks(results: Sequence[Result]) -> list[str]:
    """What must not go unsaid: queries without an answer, lists not reranked in full, passages cut, answers mended."""
    found = []
    for result in results:
        if missing := result.report.missing:
            found.append(f"{result.name}: {len(missing)} judged queries have no answer, count 0: {', '.join(missing)}.")
        e = result.efficiency
        if e and (e.incomplete or e.truncated or e.repaired):
            found.append(
                f"{result.name}: {e.incomplete} lists were not reranked in full, {e.truncated} passages were cut to "
                f"fit, {e.repaired} identifiers of generated answers were mended."
            )
    return found


def _settings(settings: Mapping[str, object]) -> str:
    rows = [[name, str(value)] for name, value in settings.items()]
    return "## Settings\n\n" + markdown_table(["setting", "value"], rows)


def _interval(ends: tuple[float, float], sign: str = "") -> str:
    return f"{ends[0]:{sign}.4f} to {ends[1]:{sign}.4f}"


def shown_p(value: float) -> str:
    """A p-value to four places, or that it is below them."""
    return "< .0001" if value < 0.0001 else f"{value:.4f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, align, *rows))
