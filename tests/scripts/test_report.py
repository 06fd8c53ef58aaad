"""The report on the code: it counts what git tracks, and leaves out what is generated."""

from __future__ import annotations

import ast

from typer.testing import CliRunner

from scripts import report


def test_report_names_the_longest_functions_and_counts_lines_without_generated_code() -> None:
    app = report.typer.Typer()
    app.command()(report.main)
    printed = CliRunner().invoke(app, ["--longest", "3"], env={"COLUMNS": "200"}).stdout
    assert "Documentation by hand" in printed
    assert "rerank/engine" in printed
    assert "rerank/v1" not in printed
    assert "Longest functions" in printed


def test_function_has_the_lines_from_its_signature_to_its_end() -> None:
    functions = {each.name: each.lines for each in report._functions("scripts/report.py")}
    node = next(
        node
        for node in ast.walk(ast.parse((report.ROOT / "scripts/report.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "_tracked"
    )
    assert functions["_tracked"] == len(ast.unparse(node).splitlines())
