"""The page of a check as a Jinja2 template in a string: Flower's app bundle ships Python files but no `*.j2`."""

__all__ = ["PAGE"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --page: #fbfbf9; --ink: #1b1f24; --muted: #5b6470; --line: #dcdfe3;
  --series: #1f5fa8; --good: #1d6b43; --bad: #a32a24; --warn: #8a5a00; --tint: #f3f4f2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e4e7ea; --muted: #9da6b0; --line: #30363c;
    --series: #7db3ee; --good: #74c69a; --bad: #f0918a; --warn: #e5b567; --tint: #1f2428; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 400 0.9375rem/1.5 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 0.4rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.6rem; }
p { max-width: 48rem; margin: 0 0 0.6rem; }
.muted { color: var(--muted); } .good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: middle; }
th { color: var(--muted); font-weight: 400; font-size: 0.845rem; }
.text { text-align: left; }
td svg { width: 9.5rem; height: 2.1rem; display: block; }
.name { position: sticky; left: 0; z-index: 1; background: var(--page); }
@media (max-width: 40rem) {
  main { padding: 1.2rem 1rem 3rem; }
  .name { min-width: 6.5rem; max-width: 9rem; white-space: normal; overflow-wrap: anywhere; line-height: 1.25; }
  td svg { width: 7rem; }
}
.scroll:focus-visible { outline: 2px solid var(--series); outline-offset: 2px; }
.findings { list-style: none; padding: 0; margin: 0; }
.findings li { padding: 0.45rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.tag { font-size: 0.8rem; margin-right: 0.6rem; white-space: nowrap; }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p><strong class="{{ tone }}">{{ verdict }}</strong> {{ summary }}</p>
{% for line in facts %}<p class="muted">{{ line }}</p>
{% endfor %}
{% macro listed(groups) %}
{% for group in groups %}
<h2 id="{{ group.key }}">{{ group.title }} ({{ group.findings | length }})</h2>
<ul class="findings">
{% for finding in group.findings %}
<li><span class="tag {{ group.tone }}">{{ finding.kind }}</span>{{ finding.text }}</li>
{% endfor %}</ul>
{% endfor %}
{% endmacro %}
{{ listed(decisive) }}
<h2 id="tickers">Tickers ({{ rows | length }})</h2>
<div class="scroll" tabindex="0" role="region" aria-labelledby="tickers"><table>
<thead><tr><th class="text name" scope="col">ticker</th><th class="text" scope="col">verdict</th>
<th class="text" scope="col">close, logarithmic</th>
{% for name in columns %}<th scope="col">{{ name }}</th>{% endfor %}
<th class="text" scope="col">layout</th></tr></thead>
<tbody>
{% for row in rows %}<tr><th class="text name" scope="row">
{%- for part in row.ticker.split("/") %}{{ part }}{% if not loop.last %}/<wbr>{% endif %}{% endfor %}</th>
<td class="text {{ row.tone }}">{{ row.verdict }}</td><td class="text">{{ row.picture }}</td>
{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}<td class="text">{{ row.layout }}</td></tr>
{% endfor %}</tbody></table></div>
<p class="muted">Nothing is filled in. Rows left out and tickers left out are not used by the preparation either;
repaired series are used as the line says. A vertical mark in a picture is a day that no sample reaches across.</p>
{{ listed(others) }}
</main>
</body>
</html>
"""
