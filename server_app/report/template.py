"""The page as a Jinja2 template in a string: Flower's app bundle ships Python files but no `*.j2`.

The template only arranges what `page.py` gives it. It is rendered with autoescape on and undefined names as errors.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbf9; --panel: #ffffff; --ink: #1b1f24; --muted: #5b6470; --line: #dcdfe3; --grid: #e8eaed;
  --series-1: #1f5fa8; --series-2: #b2590a; --series-3: #2a7f78; --link: #1f5fa8;
  --good: #1d6b43; --bad: #a32a24; --warn-ink: #7a1d17; --warn-page: #fdf0ee; --warn-line: #d98880; --tint: #f3f4f2;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --panel: #1a1e22; --ink: #e4e7ea; --muted: #9da6b0; --line: #30363c; --grid: #292f35;
    --series-1: #7db3ee; --series-2: #e5a05f; --series-3: #66bdb3; --link: #8dbdf2;
    --good: #74c69a; --bad: #f0918a; --warn-ink: #ffc9c4; --warn-page: #33201f; --warn-line: #8d4640; --tint: #1f2428;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 400 0.9375rem/1.5 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif;
  overflow-wrap: break-word;
}
.wrap { max-width: 66rem; margin: 0 auto; padding: 0 1.5rem; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 0.5rem; z-index: 2; padding: 0.5rem 0.75rem; background: var(--panel); }
a { color: var(--link); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 2px; }
h1, h2, h3, p, dd { overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; margin: 0; font-weight: 650; }
h1 { font-size: clamp(1.45rem, 1.1rem + 1.6vw, 2.05rem); letter-spacing: -0.012em; max-width: 34em; }
h2 { font-size: 1.2rem; letter-spacing: -0.005em; margin-bottom: 0.75rem; }
h3 { font-size: 0.9375rem; margin: 0 0 0.35rem; }
p { margin: 0 0 0.6rem; max-width: 46rem; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: 0.87em; }
.hash { overflow-wrap: anywhere; }
.muted { color: var(--muted); }
.small { font-size: 0.845rem; }
.after { margin-top: 0.75rem; }

.top { padding-top: 2.25rem; }
.kicker { display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; color: var(--muted); font-size: 0.845rem;
  margin: 0 0 0.7rem; max-width: none; }
.kicker span { min-width: 0; overflow-wrap: anywhere; }
.kicker b { color: var(--ink); font-weight: 650; }
.lede { font-size: 1.05rem; margin: 0.75rem 0 0; max-width: 44rem; }
.note { margin: 1rem 0 0; padding-left: 0.8rem; border-left: 3px solid var(--line); max-width: 46rem; }
.warning {
  margin: 0 0 1.25rem; padding: 0.7rem 0.95rem; border: 1px solid var(--warn-line); border-left-width: 5px;
  background: var(--warn-page); color: var(--warn-ink); border-radius: 3px;
}
.warning strong { display: block; font-size: 1.05rem; }
.warning p { margin: 0.1rem 0 0; }

.cards {
  display: grid; grid-template-columns: repeat(7, 1fr); margin: 1.6rem 0 0; padding: 0;
  border-top: 1px solid var(--line); border-bottom: 1px solid var(--line);
}
.card { padding: 0.75rem 0.9rem; border-left: 1px solid var(--line); min-width: 0; }
.card:first-child { border-left: 0; padding-left: 0; }
.card dt { color: var(--muted); font-size: 0.8rem; }
.card dd { margin: 0; }
.card .value { font-size: 1.42rem; font-weight: 600; letter-spacing: -0.015em; line-height: 1.3; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.card .unit { font-size: 0.62em; font-weight: 400; color: var(--muted); letter-spacing: 0; }
.card .detail { color: var(--muted); font-size: 0.8rem; line-height: 1.35; }
.good { color: var(--good); } .bad { color: var(--bad); }

.contents { margin: 1rem 0 0; font-size: 0.845rem; }
.contents ul { display: flex; flex-wrap: wrap; gap: 0.15rem 1.1rem; list-style: none; margin: 0; padding: 0; }
section { padding-top: 2.1rem; }

table { border-collapse: collapse; font-variant-numeric: tabular-nums lining-nums; }
caption { text-align: left; color: var(--muted); font-size: 0.845rem; padding-bottom: 0.45rem; caption-side: top; }
th, td { padding: 0.32rem 0.75rem; text-align: right; vertical-align: baseline; border-bottom: 1px solid var(--line);
  font-weight: 400; white-space: nowrap; }
th[scope=row], th[scope=rowgroup], .text { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
thead th { color: var(--muted); font-size: 0.8rem; vertical-align: bottom; border-bottom-color: var(--muted); }
thead .unit { display: block; }
th[scope=rowgroup] { font-weight: 650; padding-top: 0.85rem; white-space: normal; }
tr.ours > * { font-weight: 650; }
tr.failed > * { color: var(--muted); background: var(--tint); }
.scroll { overflow-x: auto; max-width: 100%; }
.metrics table { min-width: min(100%, 44rem); }
.metrics th[scope=row] { padding-left: 0.9rem; }
.rounds { border: 1px solid var(--line); border-radius: 3px; background: var(--panel); }
.rounds table { width: 100%; font-size: 0.8rem; }
.rounds caption { padding: 0.6rem 0.7rem 0.3rem; }
.rounds caption span { position: sticky; left: 0.7rem; display: inline-block; max-width: calc(100vw - 3.5rem); }
.rounds th, .rounds td { padding: 0.26rem 0.5rem; }
.rounds th:first-child { padding-left: 0.7rem; position: sticky; left: 0; background: var(--panel); }
.rounds tr.failed > th:first-child { background: var(--tint); }
.rounds tbody tr:last-child > * { border-bottom: 0; }
.pairs { width: 100%; }
.pairs th, .pairs td { white-space: normal; text-align: left; padding: 0.26rem 1.25rem 0.26rem 0; }
.pairs th { color: var(--muted); overflow-wrap: anywhere; }
.pairs td { overflow-wrap: anywhere; }

.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.4rem 2rem; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { font-size: 0.845rem; }
figcaption .unit { color: var(--muted); margin-left: 0.35em; }
.how { margin: 0.3rem 0 0; color: var(--muted); font-size: 0.8rem; line-height: 1.4; }
.plot { display: block; width: 100%; height: auto; margin-top: 0.35rem; stroke-linejoin: round; stroke-linecap: butt; }
.plot text { font-family: inherit; }

.columns { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1.5rem 2.5rem; }
.uneven { grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); }
.facts { margin: 0; }
.facts > div { display: grid; grid-template-columns: 10.5rem minmax(0, 1fr); gap: 0 1rem; padding: 0.32rem 0;
  border-bottom: 1px solid var(--line); }
.facts dt { color: var(--muted); } .facts dd { margin: 0; }
.meter { height: 0.5rem; border-radius: 1px; background: var(--grid); margin-top: 0.3rem; overflow: hidden; }
.meter span { display: block; height: 100%; background: var(--series-1); }
.open { margin: 0; padding: 0 0 0 1.05rem; }
.open li { margin-bottom: 0.5rem; }
.open li::marker { color: var(--muted); }
.label { display: inline-block; border: 1px solid var(--warn-line); background: var(--warn-page);
  color: var(--warn-ink); padding: 0 0.45rem; border-radius: 3px; font-size: 0.845rem; font-weight: 600; }
.definitions { margin-top: 2.6rem; padding: 1rem 0 2.5rem; border-top: 1px solid var(--line); color: var(--muted);
  font-size: 0.845rem; }
.definitions p { max-width: 52rem; }

@media (max-width: 62rem) { .cards { grid-template-columns: repeat(4, 1fr); }
  .card:nth-child(n+5) { border-top: 1px solid var(--line); } .card:nth-child(5) { border-left: 0; padding-left: 0; } }
@media screen and (max-width: 44rem) {
  .wrap { padding: 0 1rem; } .top { padding-top: 1.25rem; }
  .plots, .columns { grid-template-columns: minmax(0, 1fr); }
  .cards { grid-template-columns: repeat(2, 1fr); }
  .card, .card:nth-child(5) { padding: 0.55rem 0.75rem; border-left: 1px solid var(--line); }
  .card:nth-child(n+3) { border-top: 1px solid var(--line); }
  .card:nth-child(odd) { border-left: 0; padding-left: 0; } .card:nth-child(7) { grid-column: 1 / -1; }
  th, td { padding: 0.3rem 0.5rem; } .metrics { font-size: 0.85rem; }
  .metrics th, .metrics td { padding: 0.3rem 0.3rem; } .metrics th:first-child { padding-left: 0; }
  .metrics th[scope=row] { padding-left: 0; }
  .facts > div { grid-template-columns: 7.5rem minmax(0, 1fr); gap: 0 0.75rem; }
  .contents a { display: inline-block; padding: 0.3rem 0; }
}
@media print {
  @page { size: A4; margin: 14mm 13mm; }
  html { font-size: 9.2pt; }
  body { background: none; }
  .wrap { max-width: none; padding: 0; } .top { padding-top: 0; }
  .contents, .skip { display: none; }
  section { padding-top: 1.1rem; }
  h2 { margin-bottom: 0.4rem; } .metrics th, .metrics td { padding-block: 0.2rem; }
  .facts > div { grid-template-columns: 7.2rem minmax(0, 1fr); padding: 0.18rem 0; }
  .open li { margin-bottom: 0.25rem; }
  h2, h3, caption { break-after: avoid; }
  #privacy, tr, figure, .facts > div, .open li { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; } .rounds { border: 0; background: none; }
  .rounds table, .rounds thead th { font-size: 6.7pt; }
  .pairs th, .pairs td { padding: 0.12rem 1rem 0.12rem 0; }
  .rounds th, .rounds td { padding: 0.14rem 0.2rem; }
  .rounds th:first-child { position: static; padding-left: 0; background: none; }
  .rounds caption { padding-left: 0; }
  .cards { grid-template-columns: repeat(7, auto); } .card { padding: 0.5rem 0.55rem; }
  .card:nth-child(n) { border-top: 0; }
  .card:nth-child(5) { border-left: 1px solid var(--line); padding-left: 0.55rem; }
  .card .value { font-size: 1.15rem; }
  .plots { gap: 0.9rem 1.6rem; }
  .warning, .label, .meter, .meter span, tr.failed > * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>FCFL run {{ run_short }}: {{ headline }}</title>
<style>{{ style }}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="wrap top">
  {% for warning in warnings %}
  <div class="warning" role="note"><strong>{{ warning.title }}</strong><p>{{ warning.text }}</p></div>
  {% endfor %}
  <p class="kicker"><b>FCFL run report</b> <span>run <code>{{ run_short }}</code></span> <span>{{ when }}</span>
    <span>{{ outcome }}</span></p>
  <h1 id="headline">{{ headline }}</h1>
  {% if lede %}
  <p class="lede">{{ lede | join(" ") }}</p>
  {% endif %}
  {% if message %}
  <p class="note" id="message">{{ message }}</p>
  {% endif %}
  <dl class="cards">
    {% for card in cards %}
    <div class="card">
      <dt>{{ card.label }}</dt>
      <dd><span class="value {{ card.tone }}">{{ card.value }}
        {%- if card.unit %} <span class="unit">{{ card.unit }}</span>{% endif %}</span>
        {%- if card.detail %}<div class="detail">{{ card.detail }}</div>{% endif %}</dd>
    </div>
    {% endfor %}
  </dl>
  <nav class="contents" aria-label="Contents"><ul>
    <li><a href="#metrics">Final metrics</a></li>
    <li><a href="#privacy">Privacy</a></li>
    <li><a href="#curves">Learning curves</a></li>
    <li><a href="#rounds">Rounds</a></li>
    <li><a href="#configuration">Configuration</a></li>
    <li><a href="#provenance">Provenance</a></li>
  </ul></nav>
</header>
<main id="main" class="wrap" tabindex="-1">

<section id="metrics" aria-labelledby="metrics-title">
  <h2 id="metrics-title">Final metrics</h2>
  {% if splits %}
  <div class="scroll metrics" tabindex="0" role="region" aria-labelledby="metrics-caption">
  <table id="metrics-table">
    <caption id="metrics-caption">Metrics of {{ evaluated }}, in raw return units. R² is against the zero
      forecast.</caption>
    <thead><tr>
      <th scope="col" class="text">Forecast</th>
      <th scope="col">MSE <span class="unit">× 10⁻⁴</span></th>
      <th scope="col">MAE <span class="unit">× 10⁻²</span></th>
      <th scope="col"><abbr title="Directional accuracy">DA</abbr> <span class="unit">%</span></th>
      <th scope="col">R² <span class="unit">%</span></th>
      {% if skill_known %}
      <th scope="col">Skill <span class="unit">0 to 1</span></th>
      {% endif %}
    </tr></thead>
    {% for split in splits %}
    <tbody>
      <tr><th scope="rowgroup" colspan="{{ 6 if skill_known else 5 }}">{{ split.name }}
        <span class="muted small">{{ split.count }}</span>
        {%- if split.label %} <span class="label">{{ split.label }}</span>{% endif %}</th></tr>
      {% for row in split.rows %}
      <tr{% if row.ours %} class="ours"{% endif %}>
        <th scope="row">{{ row.name }}</th>
        {% for cell in row.cells %}
        <td{% if loop.index == 4 and row.tone %} class="{{ row.tone }}"{% endif %}>{{ cell }}</td>
        {% endfor %}
      </tr>
      {% endfor %}
    </tbody>
    {% endfor %}
  </table>
  </div>
  <p class="muted small after">A dash marks what the run does not record: the zero forecast takes no direction,
    and the coordinator stores only the squared error of the reference forecasts. The figures are point
    estimates; this page gives no interval for them.</p>
  {% else %}
  <p>There is no evaluation: neither the served model nor any broadcast point was measured in this run.</p>
  {% endif %}
</section>

<section id="privacy" aria-labelledby="privacy-title">
  <h2 id="privacy-title">Privacy</h2>
  <div class="columns">
    <div>
      <h3>{{ guarantee }}</h3>
      <dl class="facts">
        {% for fact in facts %}
        <div><dt>{{ fact.label }}</dt><dd>{{ fact.value }}
          {%- if fact.meter is not none %}
          <div class="meter" aria-hidden="true"><span style="width: {{ fact.meter }}%"></span></div>
          {%- endif %}
          {%- if fact.detail %}<div class="muted small">{{ fact.detail }}</div>{% endif %}</dd></div>
        {% endfor %}
      </dl>
    </div>
    <div>
      <h3>What is not protected</h3>
      <ul class="open">
        {% for item in open %}
        <li>{% if item.label %}<span class="label">{{ item.label }}</span> {% endif %}{{ item.text }}</li>
        {% endfor %}
      </ul>
    </div>
  </div>
</section>

<section id="curves" aria-labelledby="curves-title">
  <h2 id="curves-title">Learning curves</h2>
  {% if charts %}
  <div class="plots">
    {% for chart in charts %}
    <figure id="figure-{{ chart.key }}">
      <figcaption><strong>{{ chart.title }}</strong><span class="unit">{{ chart.unit }}</span></figcaption>
      {{ chart.svg }}
      <p class="how">{{ chart.caption }}</p>
    </figure>
    {% endfor %}
  </div>
  {% endif %}
  {% if not_drawn %}
  <p class="muted small after">Not drawn, for want of data: {{ not_drawn | join(", ") }}.</p>
  {% endif %}
</section>

<section id="rounds" aria-labelledby="rounds-title">
  <h2 id="rounds-title">Rounds</h2>
  {% if rows %}
  <div class="scroll rounds" tabindex="0" role="region" aria-labelledby="rounds-caption">
  <table id="rounds-table">
    <caption id="rounds-caption"><span>{{ rounds_caption }}</span></caption>
    <thead><tr>
      {% for column in columns %}
      <th scope="col"{% if column.text %} class="text"{% endif %}>{{ column.name }}
        {%- if column.unit %} <span class="unit">{{ column.unit }}</span>{% endif %}</th>
      {% endfor %}
    </tr></thead>
    <tbody>
      {% for row in rows %}
      <tr{% if not row.completed %} class="failed"{% endif %}>
        {% for cell in row.cells %}
        {% if loop.first %}
        <th scope="row">{{ cell }}</th>
        {% else %}
        <td{% if columns[loop.index0].text %} class="text"{% endif %}>{{ cell }}</td>
        {% endif %}
        {% endfor %}
      </tr>
      {% endfor %}
    </tbody>
  </table>
  </div>
  {% else %}
  <p>No round was started.</p>
  {% endif %}
</section>

<div class="columns uneven">
<section id="configuration" aria-labelledby="configuration-title">
  <h2 id="configuration-title">Configuration</h2>
  <table id="configuration-table" class="pairs">
    <caption>Every setting of the run. Hash of the configuration:
      <code class="hash">{{ config_hash }}</code></caption>
    <thead><tr><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
    <tbody>
      {% for key, value in config %}
      <tr><th scope="row"><code>{{ key }}</code></th><td><code>{{ value }}</code></td></tr>
      {% endfor %}
    </tbody>
  </table>
</section>

<section id="provenance" aria-labelledby="provenance-title">
  <h2 id="provenance-title">Provenance</h2>
  <dl class="facts">
    {% for fact in provenance %}
    <div><dt>{{ fact.label }}</dt><dd>{% if fact.code %}<code class="hash">{{ fact.value }}</code>
      {%- else %}{{ fact.value }}{% endif %}
      {%- if fact.detail %}<div class="muted small">{{ fact.detail }}</div>{% endif %}</dd></div>
    {% endfor %}
  </dl>
</section>

</div>

<section class="definitions" aria-labelledby="definitions-title">
  <h2 id="definitions-title">How to read the numbers</h2>
  <p>MSE and MAE are the mean squared and mean absolute error of the next day’s log return. R² is out of sample and
    against the zero forecast: 1 − MSE ÷ MSE of forecasting zero; below zero the model is worse than no forecast. DA is
    the share of records whose direction was forecast correctly.{% if skill_known %} Skill is the share of the
    predictable part that was learned, (MSE of zero − MSE) ÷ (MSE of zero − MSE of the optimum): 0 for the zero
    forecast, 1 for the optimal one, which only a synthetic market knows.{% endif %}</p>
  <p>An epoch is one attempt at a secure sum. A round whose attempt was abandoned is tried again in a new epoch, with
    fresh noise; what the first attempt spent stays spent. Figures per round describe the broadcast point of that round,
    the final metrics the served model.</p>
</section>
</main>
</body>
</html>
"""
