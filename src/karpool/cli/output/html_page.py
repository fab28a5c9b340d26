"""One self-contained HTML page: no script, nothing loaded, light and dark.

Callers pass markup that they have built with `escape`; `text`, `table` and `fact` do it for them.
The page forbids itself everything but its own style sheet, so that a name that slipped
through could still not run or fetch anything.
"""

from collections.abc import Iterable, Sequence

from karpool.cli.output.text import escape

_STYLE = """
:root { color-scheme: light dark; --bg: #fff; --ink: #1a1d21; --quiet: #5c6570; --rule: #d9dee3;
  --card: #f6f8fa; --good: #1a7f37; --bad: #b3261e;
  --c0: #2563a8; --c1: #c25b12; --c2: #2a7f62; --c3: #8a4fa3; --c4: #7a6a1f; --c5: #a33a5c; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --ink: #e6e9ec; --quiet: #9aa5b1;
  --rule: #333a41; --card: #1d2226; --good: #57c178; --bad: #f2857d;
  --c0: #6ea8e8; --c1: #f0a064; --c2: #68c9a4; --c3: #c79be0; --c4: #cdb95a; --c5: #ea8fae; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 2rem 1.25rem 4rem; background: var(--bg);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
.quiet { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.2rem 0; padding: 0; }
.fact { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .7rem 1rem;
  min-width: 9rem; }
.fact b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; min-width: 40rem; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--rule);
  overflow-wrap: break-word; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; } td.w { white-space: nowrap; }
td:not([class]) { min-width: 11rem; }
details { border: 1px solid var(--rule); border-radius: 8px; padding: .5rem .9rem; margin: .5rem 0; }
summary { cursor: pointer; }
svg { width: 100%; height: auto; max-width: 760px; display: block; }
svg text { fill: var(--quiet); font-size: 12px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--quiet); }
polyline { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: 1rem; list-style: none; margin: .3rem 0 0; padding: 0;
  font-size: .88rem; }
pre.copy { user-select: all; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
@media print { body { max-width: none; padding: 0; } .scroll { overflow: visible; }
  table { min-width: 0; font-size: 8pt; }
  td, th, td.n, th.n, td.w { white-space: normal; overflow-wrap: anywhere; } td:not([class]) { min-width: 0; }
  .copied { display: none; } tr, svg, .fact { break-inside: avoid; } h2, h3 { break-after: avoid; } }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
"""
_NAME_MAX = 64
_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'"
_COLOURS = "".join(
    f".l{n} {{ stroke: var(--c{n}); }} .f{n} {{ fill: var(--c{n}); }} .b{n} {{ background: var(--c{n}); }}\n"
    for n in range(6)
)


def page(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>"
    )


def text(content: str, tag: str = "p", style: str = "") -> str:
    attribute = f' class="{style}"' if style else ""
    return f"<{tag}{attribute}>{escape(content)}</{tag}>"


def facts(entries: Sequence[tuple[str, str]]) -> str:
    cards = "".join(
        f'<div class="fact"><b>{escape(value)}</b><span class="quiet">{escape(name)}</span></div>'
        for name, value in entries
    )
    return f'<div class="facts">{cards}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """`numbers`: columns that are aligned to the right."""
    heads = "".join(_cell("th", name, index in numbers) for index, name in enumerate(header))
    lines = "".join(
        "<tr>" + "".join(_cell("td", cell, index in numbers) for index, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def details(summary: str, content: str) -> str:
    """`content` is markup."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def copied(summary: str, content: str) -> str:
    """Text to be taken elsewhere: a page without scripts cannot copy, but one click chooses all of it."""
    shown = f'<pre class="copy">{escape(content)}</pre>'
    return f'<div class="copied">{details(summary, shown)}</div>'


def _cell(tag: str, content: str, number: bool) -> str:
    # Names stay on one line, whatever hyphens they have; a table that becomes too wide scrolls.
    is_name = tag == "td" and " " not in content and len(content) <= _NAME_MAX
    attribute = ' class="n"' if number else ' class="w"' if is_name else ""
    return f"<{tag}{attribute}>{escape(content)}</{tag}>"
