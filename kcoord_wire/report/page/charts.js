// The five charts and the time span that they show together. Times are ms after the group's first moment.

const charts = (() => {
  const IDS = ["causes", "lanes", "lag", "pauses", "commits"];
  const PADDING = { causes: [22, 4], lanes: [2, 2], lag: [6, 4], pauses: [6, 4], commits: [6, 24] }; // above and below the plot
  const ROW = 20, RIGHT = 14, SHORTEST = 0.02;
  const views = {};
  const OUTAGE = "#7a1f1f";
  let group, rows, lanes, isUnfolded = false, from, to, left, plot, drawing = null, again = false, ready = false, printing = false;

  async function start(specs, open) {
    for (const id of IDS) {
      const options = { ast: true, renderer: "svg", actions: false, defaultStyle: false, logLevel: 1, tooltip: tip };
      views[id] = (await vegaEmbed($(id), specs[id], options)).view;
      $(id).setAttribute("role", "img"); // Vega sets a role, and a name without meaning
      $(id).removeAttribute("aria-roledescription");
      views[id].addEventListener("click", (event, item) => {
        if (item && item.datum && item.datum.n && !dragged) open(item.datum.n);
      });
    }
    $("lanes").addEventListener("scroll", draw);
    new ResizeObserver(draw).observe($("charts"));
    ready = true;
    draw();
  }

  function setGroup(chosen) {
    group = chosen;
    // Show the number of commits if the group commits too rarely for a rate of records.
    group.measure = group.commits.some((point) => point[1] > 0) ? 1 : 2;
    group.unit = group.measure === 1 ? "records" : "commits";
    group.each = { 1: "second", 60: "minute" }[group.interval] || duration(group.interval * 1000);
    rows = group.rebalances;
    unfold(false);
    $("lanes").scrollTop = 0;
    whole();
  }

  function unfold(all) {
    isUnfolded = all;
    draw();
  }

  function setRebalances(shown) {
    rows = shown;
    draw();
  }

  function edges() {
    const room = group.span ? group.span * 0.01 : 500;
    return [-room, group.span + room];
  }

  function whole() { show(...edges()); }

  function show(a, b) {
    const [first, last] = edges();
    const span = Math.min(Math.max(b - a, SHORTEST), last - first);
    const middle = (a + b) / 2;
    from = Math.min(Math.max(middle - span / 2, first), last - span);
    to = from + span;
    draw();
  }

  function zoom(factor, at = (from + to) / 2) { show(at - (at - from) * factor, at + (to - at) * factor); }
  function move(part) { show(from + (to - from) * part, to + (to - from) * part); }

  // A request during drawing draws once more afterwards.
  async function draw() {
    if (!ready || !group) return;
    again = true;
    if (drawing) return drawing;
    drawing = (async () => {
      while (again) {
        await new Promise(requestAnimationFrame);
        again = false;
        await Promise.all(fill().map((view) => view.runAsync()));
      }
      drawing = null;
      $("charts").dataset.drawn = `${from} ${to}`;
    })();
    return drawing;
  }

  // Set the visible data of every view; the caller runs them.
  function fill() {
    const width = $("charts").clientWidth;
    lanes = isUnfolded || printing ? group.lanes : group.lanes.slice(0, group.lanes.length - group.folded);
    const causes = [...(group.outages.length ? ["outage"] : []), ...group.causes.map((share) => share[0])];
    const names = [...causes, ...lanes.map((lane) => (width > 800 && lane.host ? `${lane.label} · ${lane.host}` : lane.label))];
    left = Math.round(Math.max(70, Math.min(260, width * 0.3, 18 + 6.6 * Math.max(...names.map((name) => name.length)))));
    plot = Math.max(120, width - left - RIGHT);
    const first = group.first;
    const heights = { causes: ROW * Math.max(1, causes.length), lanes: ROW * Math.max(1, lanes.length), lag: 84, pauses: 84, commits: 84 };
    const bands = [...outagesOf(first), ...bandsOf(causes, first)];
    const step = (curve, at) => around(curve).map((point) => ({ at: first + point[0], value: point[at] }));
    const data = {
      causes: { bands },
      lanes: { bands, ...lanesOf(first) },
      lag: { bands, steps: step(group.lag, 1) },
      pauses: { bands, steps: step(group.pauses, 1) },
      commits: {
        bands,
        steps: step(group.commits, group.measure),
        refused: around(group.commits).filter((point) => point[3]).map((point) => (
          { at: first + Math.min(point[0] + group.interval * 500, group.span), value: point[group.measure], tip: counted(point[3], "commit") + " refused" })),
      },
    };
    const labels = { causes, lanes: names.slice(causes.length) };
    const shade = bands.length > 150 ? 0.1 : 0.22;
    $("range").textContent = `${clock(first + from, to - from)} to ${clock(first + to, to - from)} · ${duration(to - from)}`;
    return IDS.map((id) => {
      const [above, below] = PADDING[id];
      const view = views[id];
      view.width(plot).height(heights[id]).padding({ left, right: RIGHT, top: above, bottom: below });
      view.signal("t0", first + from).signal("t1", first + to).signal("shade", shade).signal("ticks", Math.max(2, Math.round(plot / 120)));
      if (labels[id]) view.signal("labels", labels[id]).signal("side", left);
      for (const [name, values] of Object.entries(data[id])) view.data(name, values);
      return view;
    });
  }

  const pixel = () => (to - from) / plot;

  // Outages are bands of their own, in the first row of the causes.
  function outagesOf(first) {
    const least = 2 * pixel();
    return group.outages.filter(([start, end]) => end >= from - least && start <= to).map(([start, end, kind, text]) => ({
      from: first + start, to: first + Math.max(end, start + least), joined: first + Math.max(end, start + least),
      top: 0.15, bottom: 0.85, colour: OUTAGE, tip: `${kind}, ${duration(end - start)}\n${text}`,
    }));
  }

  function bandsOf(causes, first) {
    const least = 2 * pixel();
    return rows.filter((row) => row.end >= from - least && row.start <= to).map((row) => {
      const at = causes.indexOf(row.cause);
      const end = Math.max(row.end, row.start + least);
      const joined = row.joined === undefined ? end : Math.min(Math.max(row.joined, row.start + least), end);
      const who = person(row.who, row.host);
      const late = row.late ? `\nwaited ${duration(row.late)} for ${person(row.last, row.lastHost)}${row.how ? `, ${row.how}` : ""}` : "";
      return {
        from: first + row.start, to: first + end, joined: first + joined, top: at + 0.15, bottom: at + 0.85, n: row.n,
        colour: (page.causes[row.cause] || { colour: page.other }).colour,
        tip: `#${row.n} ${row.cause}${who ? `\n${who}` : ""}\n${row.took === undefined ? row.outcome : `took ${duration(row.took)}`}${late}`,
      };
    });
  }

  function lanesOf(first) {
    const bars = [], figures = [], lives = [], ends = [], dead = [];
    const most = Math.max(1, ...group.bars.map((flat) => flat.reduce((top, value, at) => (at % 4 === 2 ? Math.max(top, value) : top), 0)));
    const [top, bottom] = visibleLanes();
    lanes.forEach((lane, row) => {
      if (row < top || row > bottom) return;
      for (const [start, end, why, id] of lane.lives) {
        if (end < from || start > to) continue;
        const gone = why ? `\n${why} at ${relative(end)}` : "";
        lives.push({ from: first + start, to: first + end, row: row + 0.5, tip: `${person(lane.label, lane.host)}\n${id}${gone}` });
        const fault = why && why !== "left" && why !== "replaced";
        if (why) ends.push({ at: first + end, row: row + 0.5, colour: fault ? "#d1495b" : "#7d8590", tip: `${person(lane.label, lane.host)}\n${why} at ${relative(end)}` });
      }
      for (const [start, end, held] of lane.dead) {
        if (end < from || start > to) continue;
        const about = `dead from ${relative(start)} to ${relative(end)}, when the coordinator noticed`;
        dead.push({
          from: first + start, to: first + end, top: row + 0.2, bottom: row + 0.8,
          tip: `${person(lane.label, lane.host)}\n${about}: ${counted(held, "partition")} unread for ${duration(end - start)}`,
        });
      }
      for (const [start, end, held, which] of narrowed(group.bars[row] || [])) {
        const half = 0.24 + 0.2 * held / most;
        const count = Number.isInteger(held) ? number(held) : held.toFixed(1);
        const visible = (Math.min(end, to) - Math.max(start, from)) / pixel();
        const middle = (Math.max(start, from) + Math.min(end, to)) / 2;
        bars.push({
          from: first + start, to: first + end, top: row + 0.5 - half, bottom: row + 0.5 + half,
          tip: `${person(lane.label, lane.host)}\n${count} ${held === 1 ? "partition" : "partitions"}${which < 0 ? "" : `: ${group.held[which]}`}\n${relative(start)} to ${relative(end)}`,
        });
        if (half * 2 * ROW >= 10.5 && visible > 10 + 7 * count.length) figures.push({ middle: first + middle, row: row + 0.5, text: count });
      }
    });
    return { bars, figures, lives, ends, dead };
  }

  // The visible lanes and some more; all of them in print.
  function visibleLanes() {
    const box = $("lanes");
    return printing ? [0, Infinity] : [box.scrollTop / ROW - 8, (box.scrollTop + box.clientHeight) / ROW + 8];
  }

  // The visible bars; those narrower than two pixels are merged with their neighbour, with the mean of their counts.
  function narrowed(flat) {
    const least = 2 * pixel(), result = [];
    for (let at = 0; at < flat.length; at += 4) {
      const [start, end, held, which] = flat.slice(at, at + 4);
      if (end < from || start > to) continue;
      const before = result[result.length - 1];
      if (before && start - before[1] < least && (end - start < least || before[1] - before[0] < least)) {
        before[2] = (before[2] * (before[1] - before[0]) + held * (end - start)) / (end - before[0]);
        before[1] = end;
        before[3] = -1;
      } else result.push([start, end, held, which]);
    }
    return result;
  }

  // The visible points of a curve, with one more on each side.
  function around(curve) {
    let a = curve.findIndex((point) => point[0] >= from), b = curve.findIndex((point) => point[0] > to);
    if (a < 0) a = curve.length;
    if (b < 0) b = curve.length;
    return curve.slice(Math.max(0, a - 1), b + 1);
  }

  // Paper does not scroll: draw every lane synchronously, before the browser prints.
  function print(starts) {
    printing = starts;
    if (ready && group) for (const view of fill()) view.run();
  }

  function scroll(by) { $("lanes").scrollBy(0, by * ROW); }

  function valueAt(curve, moment, at = 1) {
    let low = 0, high = curve.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (curve[middle][0] <= moment) low = middle + 1; else high = middle;
    }
    return low ? curve[low - 1][at] : 0;
  }

  // ---- the pointer

  let pressed = null, dragged = false;
  const timeAt = (event) => from + (event.clientX - $("charts").getBoundingClientRect().left - left) * pixel();

  function tip(handler, event, item, value) {
    const box = $("tip");
    box.hidden = !value || pressed !== null;
    if (box.hidden) return;
    box.textContent = String(value);
    const x = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
    const y = event.clientY + 18 + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18;
    box.style.left = `${Math.max(4, x)}px`;
    box.style.top = `${y}px`;
  }

  function hover(event) {
    const moment = timeAt(event);
    const inside = moment >= from && moment <= to;
    $("hair").hidden = !inside;
    if (!inside) return;
    $("hair").style.left = `${event.clientX - $("charts").getBoundingClientRect().left}px`;
    const commits = group.commits.length ? `, ${number(valueAt(group.commits, moment, group.measure))} ${group.unit} per ${group.each}` : "";
    $("reading").textContent = `${clock(group.first + moment, to - from)} (${relative(moment)}): ${counted(valueAt(group.pauses, moment), "partition")} paused${commits}${group.lag.length ? `, lag ${number(valueAt(group.lag, moment))}` : ""}`;
  }

  function listen() {
    const box = $("charts");
    box.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || timeAt(event) < from) return;
      pressed = { x: event.clientX, at: timeAt(event), from, to, pan: event.shiftKey || event.pointerType === "touch" };
      dragged = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (pressed === null) return;
      if (Math.abs(event.clientX - pressed.x) > 4) dragged = true;
      if (!dragged) return;
      if (pressed.pan) {
        const by = (event.clientX - pressed.x) * pixel();
        show(pressed.from - by, pressed.to - by);
        return;
      }
      const edge = box.getBoundingClientRect().left;
      const x = Math.min(Math.max(event.clientX, edge + left), edge + left + plot);
      $("brush").hidden = false;
      $("brush").style.left = `${Math.min(x, pressed.x) - edge}px`;
      $("brush").style.width = `${Math.abs(x - pressed.x)}px`;
    });
    window.addEventListener("pointerup", (event) => {
      if (pressed !== null && dragged && !pressed.pan) {
        const end = Math.min(Math.max(timeAt(event), from), to);
        show(Math.min(pressed.at, end), Math.max(pressed.at, end));
      }
      pressed = null;
      $("brush").hidden = true;
    });
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
    window.addEventListener("pointercancel", () => { pressed = null; $("brush").hidden = true; });
    box.addEventListener("pointermove", hover);
    box.addEventListener("pointerleave", () => { $("hair").hidden = true; $("tip").hidden = true; });
    box.addEventListener("dblclick", whole);
    box.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), timeAt(event));
      else if (sideways) move(sideways / plot);
      else return; // the page or the lanes scroll
      event.preventDefault();
    }, { passive: false });
  }

  // Show a rebalance, with its own length as a margin on both sides.
  function showRebalance(row) {
    const span = Math.max(row.end - row.start, 20);
    show(row.start - span, row.end + span);
  }

  return { start, setGroup, setRebalances, showRebalance, zoom, move, whole, scroll, listen, unfold, unfolded: () => isUnfolded, range: () => [from, to] };
})();
