"use strict";
// Draws the charts that the page holds as JSON. All text from data goes through `plain` (for the plotting library, which
// knows a little markup) or `textContent`; nothing is evaluated and nothing is fetched.
(() => {
  const groups = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const cards = [];

  let onPaper = false;
  const isDark = () => !onPaper && (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const paint = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "‹").replace(/>/g, "›");
  const colorOf = (series) => (isDark() ? series.dark : series.light);
  const faint = (color, alpha) => `rgba(${[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).join(",")},${alpha})`;
  const said = (series, at) => [series.name, ...series.lines[at]];
  const hoverText = (series) => series.lines.map((lines) => `<b>${plain(series.name)}</b><br>${lines.map(plain).join("<br>")}`);

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  class Card {
    constructor(figure) {
      this.figure = figure;
      this.charts = groups[Number(figure.dataset.group)].charts;
      this.plot = figure.querySelector(".plot");
      this.spoken = figure.querySelector(".spoken");
      this.hidden = new Set();
      this.linear = { x: false, y: false };
      this.drawn = false;
      this.at = -1;
      this.choose(0);
      const select = figure.querySelector("select");
      if (select) select.addEventListener("change", () => { this.choose(Number(select.value)); this.draw(); });
      this.plot.addEventListener("keydown", (event) => this.walk(event));
      this.plot.addEventListener("blur", () => this.drawn && Plotly.Fx.unhover(this.plot));
      figure.querySelector("details").addEventListener("toggle", () => this.tabulate());
    }

    choose(index) {
      this.chart = this.charts[index];
      this.at = -1;
      this.plot.setAttribute("aria-label", this.chart.summary);
      this.legend();
      this.scales();
      const notes = this.figure.querySelector(".notes");
      notes.replaceChildren(...[this.chart.common, ...this.chart.notes].filter(Boolean).map((note) => element("li", note)));
      this.tabulate();
    }

    legend() {
      const box = this.figure.querySelector(".legend");
      box.replaceChildren(...this.chart.series.map((series) => {
        const button = element("button", null, { type: "button", "aria-pressed": String(!this.hidden.has(series.name)) });
        button.append(swatch(series), element("span", series.name));
        button.addEventListener("click", () => {
          if (!this.hidden.delete(series.name)) this.hidden.add(series.name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(series.name)));
          this.draw();
        });
        return button;
      }));
    }

    scales() {
      const switches = ["y", "x"].filter((name) => this.chart[name].log && !this.chart[name].reverse);
      this.figure.querySelector(".scales").replaceChildren(...switches.map((name) => {
        const text = () => `${name}: ${this.linear[name] ? "linear" : "log"}`;
        const button = element("button", text(), { type: "button", "aria-label": `Scale of the ${name} axis, log or linear`,
          "aria-pressed": String(this.linear[name]) });
        button.addEventListener("click", () => {
          this.linear[name] = !this.linear[name];
          button.textContent = text();
          button.setAttribute("aria-pressed", String(this.linear[name]));
          this.draw();
        });
        return button;
      }));
    }

    tabulate() {
      const details = this.figure.querySelector("details");
      if (!details.open) return;
      const table = element("table", null);
      const head = table.createTHead().insertRow();
      for (const text of [details.dataset.series, details.dataset.figures]) head.append(element("th", text, { scope: "col", class: "left" }));
      const body = table.createTBody();
      for (const series of this.chart.series) {
        series.lines.forEach((lines) => {
          const row = body.insertRow();
          row.append(element("th", series.name, { scope: "row", class: "left name" }), element("td", lines.join(" · "), { class: "left" }));
        });
      }
      this.figure.querySelector(".figures").replaceChildren(table);
    }

    draw() {
      this.drawn = true;
      return Plotly.react(this.plot, this.traces(), this.layout(), { displayModeBar: false, responsive: true, doubleClick: false });
    }

    visible() {  // what is no backend lies below, where it hides no mark
      const shown = this.chart.series.filter((series) => !this.hidden.has(series.name));
      return [...shown.filter((one) => one.marks === "reference"), ...shown.filter((one) => one.marks !== "reference")];
    }

    traces() {
      const shown = this.visible();
      return [...shown.flatMap(bands), ...shown.flatMap((one, at) => tails(one, at - (shown.length - 1) / 2)), ...shown.map((one) => lines(one, this.chart))];
    }

    layout() {
      const narrow = this.plot.clientWidth < 460;
      const ends = narrow ? [] : this.endLabels();
      const longest = Math.max(0, ...ends.map((one) => one.length));
      return {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12.5, color: paint("--quiet") },
        margin: { l: narrow ? 54 : 66, r: ends.length ? 26 + Math.min(165, 7.6 * longest) : 34, t: 12, b: 52 },
        xaxis: this.axis("x", narrow), yaxis: this.axis("y", narrow),
        barmode: this.chart.series.some((series) => series.marks === "spans") ? "overlay" : "stack", bargap: 0.3,
        showlegend: false, hovermode: "closest", dragmode: false, annotations: ends.map((one) => one.label),
        hoverlabel: { align: "left", bgcolor: paint("--card"), font: { color: paint("--ink"), size: 13 } },
      };
    }

    axis(name, narrow) {
      const axis = this.chart[name];
      const log = axis.log && !this.linear[name];
      const [low, high] = this.span(name);
      const range = (log ? [Math.log10(low), Math.log10(high)] : [low, high]);
      const turned = axis.texts.reduce((sum, text) => sum + text.length, 0) > (narrow ? 26 : 50) && !axis.log && name === "x" && !/^\d/.test(axis.texts[0]);
      const shown = turned || name === "y" ? axis.ticks.map((_, at) => at) : this.roomy(axis, log, narrow ? 6.2 : 7.2);
      const ticks = (axis.fixed && !this.linear[name]) || log
        ? { tickvals: shown.map((at) => axis.ticks[at]), ticktext: shown.map((at) => plain(shortened(axis.texts[at], 16))) } : { nticks: 6 };
      return {
        type: log ? "log" : "linear", range: axis.reverse ? range.reverse() : range, fixedrange: true, ...ticks,
        title: { text: plain(axis.title), standoff: name === "x" ? 12 : 8, font: { size: narrow ? 11 : 12.5 } },
        ticklabeloverflow: "allow", gridcolor: paint("--grid"), zeroline: false,
        showline: name === "x", linecolor: paint("--line"), separatethousands: true, tickangle: turned ? -35 : 0,
        automargin: turned || (name === "y" && axis.fixed),
      };
    }

    roomy(axis, log, letter) {  // the ticks of the x axis whose texts do not meet, chosen from the last, where a tail ends
      const [low, high] = axis.range.map((value) => (log ? Math.log(value) : value));
      const width = this.plot.clientWidth - (letter < 7 ? 90 : 200);
      const place = (at) => (((log ? Math.log(axis.ticks[at]) : axis.ticks[at]) - low) / (high - low)) * width;
      const half = (at) => (letter * Math.min(16, axis.texts[at].length)) / 2;
      const kept = [];
      const fromEnd = axis.reverse ? axis.ticks.map((_, at) => at).sort((a, b) => axis.ticks[a] - axis.ticks[b]) : axis.ticks.map((_, at) => at).reverse();
      for (const at of fromEnd) {
        if (kept.every((other) => Math.abs(place(other) - place(at)) >= half(other) + half(at) + 4)) kept.push(at);
      }
      return kept.sort((a, b) => a - b);
    }

    span(name) {
      const axis = this.chart[name];
      const [low, high] = axis.range;
      return axis.log && this.linear[name] ? [0, name === "x" ? high * 0.98 : high] : [low, high];
    }

    endLabels() {
      if (this.chart.series.some((series) => ["points", "stack", "cloud", "spans"].includes(series.marks))) return [];
      const [low, high] = this.span("y");
      const log = this.chart.y.log && !this.linear.y;
      const place = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
      const shown = this.visible().filter((series) => series.marks !== "dots");
      const wished = shown.map((series) => Math.min(1, Math.max(0, place(series.y[series.y.length - 1]))));
      const moved = spreadOut(wished, 0.062);
      return shown.map((series, index) => ({
        length: Math.min(series.name.length, 22),
        label: {
          xref: "paper", yref: "paper", x: 1.012, y: moved[index], xanchor: "left", yanchor: "middle", showarrow: false,
          text: `<b>${plain(shortened(series.name, 22))}</b>`,
          font: { color: colorOf(series), size: 12.5 },
        },
      }));
    }

    walk(event) {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      if (!this.drawn) this.draw();
      const shown = this.visible();
      const points = shown.flatMap((series, index) => (isFront(series, this.chart) ? [] : series.x.map((_, number) => ({ series, index, number }))));
      if (!points.length) return;
      this.at = (this.at + steps[event.key] + points.length + (this.at < 0 && steps[event.key] < 0 ? 1 : 0)) % points.length;
      const { series, index, number } = points[this.at];
      const before = this.plot.data.length - shown.length;
      Plotly.Fx.hover(this.plot, [{ curveNumber: before + index, pointNumber: number }]);
      this.spoken.textContent = said(series, number).join(", ");
    }
  }

  function swatch(series) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    for (const [name, value] of [["width", 18], ["height", 10], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    const line = document.createElementNS(space, "line");
    for (const [name, value] of [["x1", 0], ["x2", 18], ["y1", 5], ["y2", 5], ["stroke-width", 4], ["stroke", colorOf(series)]]) line.setAttribute(name, value);
    if (series.dash !== "solid") line.setAttribute("stroke-dasharray", "4 3");
    svg.append(line);
    return svg;
  }

  function bands(series) {
    if (series.marks !== "band" || !series.low || series.x.length < 2) return [];
    const points = series.x.map((x, at) => ({ x, low: series.low[at], high: series.high[at] })).filter((one) => one.low > 0 && one.high > 0);
    return [{
      type: "scatter", mode: "lines", x: [...points.map((one) => one.x), ...points.map((one) => one.x).reverse()],
      y: [...points.map((one) => one.low), ...points.map((one) => one.high).reverse()],
      fill: "toself", fillcolor: faint(colorOf(series), isDark() ? 0.18 : 0.13), line: { width: 0, color: colorOf(series) }, hoverinfo: "skip", showlegend: false,
    }];
  }

  function tails(series, aside) {  // the interval at p99, a little aside, since all lines have theirs at the same place
    if (series.marks !== "line" || !series.low) return [];
    const at = series.low.findIndex((low) => low !== null);
    const [value, color] = [series.y[at], colorOf(series)];
    return [{
      type: "scatter", mode: "markers", x: [series.x[at] * 0.9 ** aside], y: [value], marker: { color, size: 5 }, hoverinfo: "skip",
      error_y: { ...bars([value], [series.low[at]], [series.high[at]], color), thickness: 2.2 },
    }];
  }

  function boxes(series) {
    const shared = { type: "bar", hovertext: hoverText(series), hoverinfo: "text", textposition: "none" };
    const color = colorOf(series);
    const edge = { color: paint("--card"), width: 1 };
    if (series.marks === "stack") return { ...shared, x: series.x, y: series.y, marker: { color, line: edge }, hoverlabel: { bordercolor: color } };
    return {
      ...shared, orientation: "h", y: series.y, base: series.x, x: series.x_high.map((end, at) => end - series.x[at]), width: 0.72,
      marker: { color, line: { color, width: 1 } }, hoverlabel: { bordercolor: color },
    };
  }

  function isFront(series, chart) {  // the line through points that have labels of their own
    return series.marks === "reference" && chart.series.some((one) => one.marks === "points");
  }

  function lines(series, chart) {
    if (series.marks === "stack" || series.marks === "spans") return boxes(series);
    const color = colorOf(series);
    const ground = paint("--card");
    const reference = series.marks === "reference";
    const modes = { dots: "markers", band: "lines+markers", line: "lines+markers", points: "markers+text", reference: "lines+markers", cloud: "markers" };
    const front = isFront(series, chart);
    const small = series.marks === "line" || reference;
    const trace = {
      type: "scatter", mode: modes[series.marks], x: series.x, y: series.y, hovertext: hoverText(series), hoverinfo: front ? "skip" : "text",
      line: { color, width: reference ? 1.6 : 2.4, dash: reference ? "dash" : series.dash },
      marker: {
        symbol: series.marker, size: series.marks === "points" || series.marks === "dots" ? 13 : series.marks === "cloud" ? 6 : small ? 5 : 9,
        opacity: small ? 0.01 : series.marks === "cloud" ? 0.6 : 1,
        color: series.noisy.map((noisy) => (noisy ? ground : color)),
        line: { color: series.ring.map((ring) => (ring ? paint("--ink") : color)), width: series.ring.map((ring) => (ring ? 3 : series.marks === "cloud" ? 0 : 2)) },
      },
      hoverlabel: { bordercolor: color },
    };
    if (series.marks === "points") Object.assign(trace, {
      text: series.x.map(() => plain(series.name)), textposition: "top center", textfont: { color, size: 12.5 }, cliponaxis: false,
    });
    if (series.low && series.x.length === 1) trace.error_y = bars(series.y, series.low, series.high, color);
    if (series.x_low) trace.error_x = bars(series.x, series.x_low, series.x_high, color);
    return trace;
  }

  function bars(values, lows, highs, color) {
    return {
      type: "data", symmetric: false, array: highs.map((high, at) => (high ?? values[at]) - values[at]),
      arrayminus: lows.map((low, at) => values[at] - (low ?? values[at])), color: faint(color, 0.55), thickness: 1.8, width: 0,
    };
  }

  function shortened(name, length) {
    return name.length <= length ? name : "…" + name.slice(1 - length);
  }

  function spreadOut(places, gap) {
    const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
    const blocks = [];
    const start = (block) => block.sum / block.members.length;
    for (const index of order) {
      blocks.push({ sum: places[index], members: [index] });
      while (blocks.length > 1) {
        const [before, last] = blocks.slice(-2);
        if (start(before) + before.members.length * gap <= start(last)) break;
        blocks.pop();
        before.sum += last.sum - last.members.length * before.members.length * gap;
        before.members.push(...last.members);
      }
    }
    const moved = [];
    for (const block of blocks) block.members.forEach((index, step) => { moved[index] = start(block) + step * gap; });
    order.forEach((index, step) => { moved[index] = Math.max(Math.min(moved[index], 1 - (order.length - 1 - step) * gap), step * gap); });
    return moved;
  }

  function redraw() {
    for (const card of cards) {
      card.legend();
      if (card.drawn) card.draw();
    }
  }

  for (const figure of document.querySelectorAll(".plot-card")) cards.push(new Card(figure));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      watcher.unobserve(entry.target);
      cards.find((card) => card.figure === entry.target).draw();
    }
  }, { rootMargin: "300px" });
  cards.forEach((card) => watcher.observe(card.figure));
  for (const fold of document.querySelectorAll(".fold")) {  // what was drawn while it was folded has the wrong width
    fold.addEventListener("toggle", () => cards.filter((card) => card.drawn && fold.contains(card.figure)).forEach((card) => card.draw()));
  }
  addEventListener("beforeprint", () => { onPaper = true; cards.forEach((card) => card.draw()); });
  addEventListener("afterprint", () => { onPaper = false; redraw(); });
  systemDark.addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; redraw(); });
})();
