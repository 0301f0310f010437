"""``harken doctor``: what this machine has, and what to do about what is missing."""

from __future__ import annotations

import json
from typing import Any

import click

from harken.cli.exits import EPILOGUE, SOME_FAILED
from harken.cli.machine import Advice, Finding, examine
from harken.cli.screen import write_stdout


@click.command(epilog=EPILOGUE)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def command(as_json: bool) -> int:
    """Report what this machine has and what to do about what is missing.

    The code is 0 if harken can transcribe with its default model here, 1 if something that it needs is missing.
    Nothing is sent or fetched.
    """
    findings = examine()
    advice = [item for finding in findings for item in finding.advice]
    ready = not any(item.needed for item in advice)
    write_stdout(_report_json(findings, advice, ready) if as_json else _report_text(findings, advice, ready))
    return 0 if ready else SOME_FAILED


def _report_json(findings: list[Finding], advice: list[Advice], ready: bool) -> str:
    report: dict[str, Any] = {finding.title: finding.facts for finding in findings}
    report |= {"advice": [item.text for item in advice], "ready": ready}
    return json.dumps(report, indent=2) + "\n"


def _report_text(findings: list[Finding], advice: list[Advice], ready: bool) -> str:
    width = max(len(label) for finding in findings for label in finding.facts)
    lines: list[str] = []
    for finding in findings:
        facts = (f"  {label:{width}}  {_format_value(value)}" for label, value in finding.facts.items())
        lines += [finding.title, *facts, ""]
    lines.append("what to do")
    lines += [f"  {'needed' if item.needed else 'better'}: {item.text}" for item in advice] or ["  nothing"]
    lines += ["", f"harken {'can' if ready else 'cannot'} transcribe on this machine."]
    return "\n".join(lines) + "\n"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(value)
    return "-" if value is None else str(value)
