"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Remove each figure's <title>, whose browser tooltip would cover ours; keep its text for screen readers.
  for (const chart of all("svg.chart, svg.heat")) {
    const title = chart.querySelector("title");
    chart.removeAttribute("aria-labelledby");
    chart.setAttribute("aria-label", title.textContent);
    title.remove();
  }

  // The button that switches the vertical axis: each element holds the other axis's geometry in data-alt.
  for (const button of all("button.swap")) {
    const chart = document.getElementById(button.dataset.for);
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const part of all("[data-alt]", chart)) {
        const name = part.classList.contains("mark") ? "transform" : "d";
        const shown = part.getAttribute(name);
        part.setAttribute(name, part.dataset.alt);
        part.dataset.alt = shown;
      }
      for (const axis of all("g.y", chart)) axis.classList.toggle("other");
      button.textContent = button.textContent === "log" ? "linear" : "log";
    });
  }

  // The legend: hovering an entry highlights its line, clicking it hides or shows the line.
  for (const button of all(".legend button")) {
    const lines = all(".line", button.closest("section")).filter((line) => line.dataset.name === button.dataset.name);
    const highlight = (on) => lines.forEach((line) => {
      line.classList.toggle("lit", on);
      line.parentElement.classList.toggle("lighting", on);
    });
    button.disabled = false;
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      lines.forEach((line) => line.classList.toggle("off", !shown));
    });
    for (const [event, on] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]])
      button.addEventListener(event, () => highlight(on));
  }

  const positionOf = (mark) => mark.getAttribute("transform").match(/-?[\d.]+/g).map(Number);
  const makeElement = (tag, text, css) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (css) element.className = css;
    return element;
  };
  const showTip = (x, y) => {
    tip.hidden = false;
    const right = x + 18 + tip.offsetWidth > innerWidth;
    tip.style.left = `${Math.max(4, right ? x - 18 - tip.offsetWidth : x + 18)}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };

  // The tooltip of a chart: the values of all lines at the x nearest to the pointer, from top to bottom.
  const maxRows = 14;
  const showValues = (chart, x, y, place) => {
    const marks = all(".line:not(.off) .mark", chart).map((mark) => ({ mark, at: positionOf(mark) }));
    const points = marks.filter((each) => Math.abs(each.at[0] - x) < 0.5).sort((a, b) => a.at[1] - b.at[1]);
    if (!points.length) return;
    const near = y === null ? -1 : points.reduce((best, each, k) => (Math.abs(each.at[1] - y) < Math.abs(points[best].at[1] - y) ? k : best), 0);
    const from = Math.max(0, Math.min(near - maxRows / 2, points.length - maxRows));
    tip.replaceChildren(makeElement("b", points[0].mark.dataset.head));
    points.slice(from, from + maxRows).forEach(({ mark }, k) => {
      const row = makeElement("div", "", k + from === near ? "row near" : "row");
      row.append(makeElement("i", mark.parentElement.dataset.name, mark.parentElement.classList[1]), makeElement("span", mark.dataset.says));
      tip.append(row);
    });
    if (points.length > maxRows) tip.append(makeElement("div", `and ${points.length - maxRows} more`, "row"));
    const cross = chart.querySelector(".cross");
    cross.setAttribute("x1", points[0].at[0]);
    cross.setAttribute("x2", points[0].at[0]);
    cross.setAttribute("y1", 14);
    cross.setAttribute("y2", chart.viewBox.baseVal.height - 46);
    cross.style.visibility = "visible";
    showTip(...place);
  };
  const hideTip = (chart) => {
    tip.hidden = true;
    const cross = chart.querySelector(".cross");
    if (cross) cross.style.visibility = "hidden";
  };
  for (const chart of all("svg.chart")) {
    let keyIndex = -1;
    const listPositions = () => [...new Set(all(".line:not(.off) .mark", chart).map((mark) => positionOf(mark)[0]))].sort((a, b) => a - b);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect(), scale = chart.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const xs = listPositions();
      if (xs.length) showValues(chart, xs.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a)), y, [event.clientX, event.clientY]);
    });
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const xs = listPositions();
      if (!step || !xs.length) return;
      event.preventDefault();
      keyIndex = Math.max(0, Math.min(xs.length - 1, keyIndex + step));
      const box = chart.getBoundingClientRect();
      showValues(chart, xs[keyIndex], null, [box.left + (xs[keyIndex] * box.width) / chart.viewBox.baseVal.width, box.top + 20]);
    });
    chart.addEventListener("pointerleave", () => hideTip(chart));
    chart.addEventListener("blur", () => hideTip(chart));
  }
  for (const cell of all("svg.heat [data-says]")) {
    cell.addEventListener("pointermove", (event) => {
      tip.replaceChildren(makeElement("b", cell.dataset.head), makeElement("div", cell.dataset.says));
      showTip(event.clientX, event.clientY);
    });
    cell.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
