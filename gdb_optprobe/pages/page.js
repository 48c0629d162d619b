
"use strict";
// A flame graph's box fills the width when it is clicked, or chosen by the arrow keys and Enter; Escape undoes it.
for (const graph of document.querySelectorAll("svg.flame")) {
  const frames = [...graph.querySelectorAll("svg")].map(box => ({
    box,
    left: parseFloat(box.getAttribute("x")),
    width: parseFloat(box.getAttribute("width")),
    row: Number(box.getAttribute("y")),
    name: box.querySelector("title").textContent,
  }));
  if (!frames.length) continue;
  const slack = 0.0005;  // percent: positions are rounded
  const holds = (one, other) => one.left <= other.left + slack && one.left + one.width >= other.left + other.width - slack;
  const bar = document.createElement("div");
  const reset = document.createElement("button");
  const said = document.createElement("span");
  bar.className = "zoom";
  reset.textContent = "Whole graph";
  said.setAttribute("role", "status");
  bar.append(reset, said);
  graph.before(bar);
  graph.setAttribute("tabindex", "0");
  let current = frames[0];

  const choose = frame => {
    current.box.classList.remove("current");
    current = frame;
    current.box.classList.add("current");
    said.textContent = frame.name;
  };
  const zoom = to => {
    const scale = 100 / to.width;
    for (const one of frames) {
      const above = one.row < to.row && holds(one, to);
      const below = one.row >= to.row && holds(to, one);
      one.box.classList.toggle("away", !above && !below);
      one.box.classList.toggle("above", above);
      one.box.setAttribute("x", above ? "0" : `${(one.left - to.left) * scale}%`);
      one.box.setAttribute("width", above ? "100%" : `${one.width * scale}%`);
    }
    reset.disabled = to === frames[0];
    choose(to);
  };
  const near = key => {
    const row = frames.filter(one => one.row === current.row);
    const height = frames.length > 1 ? Number(current.box.getAttribute("height")) : 0;
    switch (key) {
      case "ArrowUp": return frames.find(one => one.row === current.row - height && holds(one, current));
      case "ArrowDown": return frames.find(one => one.row === current.row + height && holds(current, one));
      case "ArrowLeft": return row[row.indexOf(current) - 1];
      case "ArrowRight": return row[row.indexOf(current) + 1];
    }
  };
  reset.addEventListener("click", () => zoom(frames[0]));
  graph.addEventListener("click", event => {
    const frame = frames.find(one => one.box.contains(event.target));
    if (frame) zoom(frame);
  });
  graph.addEventListener("mouseover", event => {
    const frame = frames.find(one => one.box.contains(event.target));
    if (frame) said.textContent = frame.name;
  });
  graph.addEventListener("keydown", event => {
    if (event.key === "Enter") zoom(current);
    else if (event.key === "Escape") zoom(frames[0]);
    else {
      const next = near(event.key);
      if (!next) return;
      choose(next);
    }
    event.preventDefault();
  });
  zoom(frames[0]);
}
