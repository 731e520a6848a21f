"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // The browser's own tooltip of the whole picture would lie over ours; its words stay for those who hear them.
  for (const chart of all("svg.chart, svg.heat")) {
    const title = chart.querySelector("title");
    chart.removeAttribute("aria-labelledby");
    chart.setAttribute("aria-label", title.textContent);
    title.remove();
  }

  // The vertical axis: the elements hold their other geometry themselves.
  for (const button of all("button.swap")) {
    const chart = document.getElementById(button.dataset.for);
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const part of all("[data-alt]", chart)) {
        const name = part.classList.contains("mark") ? "transform" : "d";
        const now = part.getAttribute(name);
        part.setAttribute(name, part.dataset.alt);
        part.dataset.alt = now;
      }
      for (const axis of all("g.y", chart)) axis.classList.toggle("other");
      button.textContent = button.textContent === "log" ? "linear" : "log";
    });
  }

  // The legend: point to light a line up, press to take it away or back.
  for (const button of all(".legend button")) {
    const lines = all(".line", button.closest("section")).filter((line) => line.dataset.name === button.dataset.name);
    const light = (on) => lines.forEach((line) => {
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
      button.addEventListener(event, () => light(on));
  }

  const placed = (mark) => mark.getAttribute("transform").match(/-?[\d.]+/g).map(Number);
  const written = (tag, text, css) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (css) made.className = css;
    return made;
  };
  const show = (x, y) => {
    tip.hidden = false;
    const right = x + 18 + tip.offsetWidth > innerWidth;
    tip.style.left = `${Math.max(4, right ? x - 18 - tip.offsetWidth : x + 18)}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };

  // All lines at the place that is nearest to the pointer, from the top of the picture to its bottom.
  const most = 14;
  const tell = (chart, at, y, place) => {
    const marks = all(".line:not(.off) .mark", chart).map((mark) => ({ mark, at: placed(mark) }));
    const mine = marks.filter((each) => Math.abs(each.at[0] - at) < 0.5).sort((a, b) => a.at[1] - b.at[1]);
    if (!mine.length) return;
    const near = y === null ? -1 : mine.reduce((best, each, k) => (Math.abs(each.at[1] - y) < Math.abs(mine[best].at[1] - y) ? k : best), 0);
    const from = Math.max(0, Math.min(near - most / 2, mine.length - most));
    tip.replaceChildren(written("b", mine[0].mark.dataset.head));
    mine.slice(from, from + most).forEach(({ mark }, k) => {
      const row = written("div", "", k + from === near ? "row near" : "row");
      row.append(written("i", mark.parentElement.dataset.name, mark.parentElement.classList[1]), written("span", mark.dataset.says));
      tip.append(row);
    });
    if (mine.length > most) tip.append(written("div", `and ${mine.length - most} more`, "row"));
    const cross = chart.querySelector(".cross");
    cross.setAttribute("x1", mine[0].at[0]);
    cross.setAttribute("x2", mine[0].at[0]);
    cross.setAttribute("y1", 14);
    cross.setAttribute("y2", chart.viewBox.baseVal.height - 46);
    cross.style.visibility = "visible";
    show(...place);
  };
  const hide = (chart) => {
    tip.hidden = true;
    const cross = chart.querySelector(".cross");
    if (cross) cross.style.visibility = "hidden";
  };
  for (const chart of all("svg.chart")) {
    let keyed = -1;
    const places = () => [...new Set(all(".line:not(.off) .mark", chart).map((mark) => placed(mark)[0]))].sort((a, b) => a - b);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect(), scale = chart.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const found = places();
      if (found.length) tell(chart, found.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a)), y, [event.clientX, event.clientY]);
    });
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const found = places();
      if (!step || !found.length) return;
      event.preventDefault();
      keyed = Math.max(0, Math.min(found.length - 1, keyed + step));
      const box = chart.getBoundingClientRect();
      tell(chart, found[keyed], null, [box.left + (found[keyed] * box.width) / chart.viewBox.baseVal.width, box.top + 20]);
    });
    chart.addEventListener("pointerleave", () => hide(chart));
    chart.addEventListener("blur", () => hide(chart));
  }
  for (const cell of all("svg.heat [data-says]")) {
    cell.addEventListener("pointermove", (event) => {
      tip.replaceChildren(written("b", cell.dataset.head), written("div", cell.dataset.says));
      show(event.clientX, event.clientY);
    });
    cell.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
