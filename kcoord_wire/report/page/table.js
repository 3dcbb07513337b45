// The table of rebalances: sorted by its headers, filtered by cause, member and text; a row opens its details.

const table = (() => {
  const COLUMNS = [
    ["n", "#", true, (row) => row.n],
    ["start", "Start", true, (row) => row.start],
    ["cause", "Cause", false, (row) => row.cause],
    ["who", "Set off by", false, (row) => person(row.who, row.host)],
    ["took", "Took", true, (row) => row.took ?? -1],
    ["late", "Waited for", true, (row) => row.late ?? -1],
    ["moved", "Moved", true, (row) => row.moved ?? 0],
    ["paused", "Paused", true, (row) => row.paused ?? -1],
    ["outcome", "Outcome", false, (row) => row.outcome],
  ];
  let group, order = "n", down = false, opened = new Set(), longest = 1, body, lines, typed;

  function setGroup(chosen) {
    group = chosen;
    [order, down] = ["n", false];
    opened = new Set();
    lines = new Map();
    longest = Math.max(1, ...group.rebalances.map((row) => row.took || 0));
    $("filter").reset();
    choices($("filter-cause"), "any cause", group.rebalances.map((row) => row.cause));
    choices($("filter-member"), "any member", group.rebalances.flatMap((row) => [...new Set([row.who, row.last, ...(row.removed || []).map((gone) => gone[0])])].filter(Boolean)));
    $("rebalances").replaceChildren(
      el("caption", {}, "One row per rebalance. Start is the time in UTC, and after the group's first moment; the header buttons sort, the number opens the details."),
      el("thead", {}, el("tr", {}, COLUMNS.map(([key, name, figure]) =>
        el("th", { scope: "col", class: `${figure ? "figure " : ""}c-${key}`, "data-key": key },
          el("button", { type: "button", onclick: () => sortBy(key) }, name))))),
      body = el("tbody"));
    fill();
  }

  // Every value with its count, most frequent first.
  function choices(select, all, values) {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
    const sorted = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    select.replaceChildren(el("option", { value: "" }, all), ...sorted.map(([value, count], at) => {
      const option = el("option", {}, `${value} (${number(count)})`);
      option.value = value;
      return option;
    }));
  }

  function sortBy(key) {
    [order, down] = [key, key === order ? !down : ["took", "late", "moved", "paused"].includes(key)];
    fill();
  }

  function matching() {
    const cause = $("filter-cause").value, member = $("filter-member").value;
    const words = $("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    return group.rebalances.filter((row) =>
      (!cause || row.cause === cause)
      && (!member || row.who === member || row.last === member || (row.removed || []).some((gone) => gone[0] === member))
      && (!words.length || words.every((word) => textOf(row).includes(word))));
  }

  function textOf(row) {
    row.text ??= [`#${row.n}`, row.cause, row.who, row.host, row.member, row.detail, row.reason, row.last, row.lastHost, row.how, row.outcome, row.assignor, ...(row.removed || []).flat()].join("\n").toLowerCase();
    return row.text;
  }

  function fill() {
    const value = COLUMNS.find(([key]) => key === order)[3];
    const rows = matching();
    const shown = [...rows].sort((a, b) => {
      const [x, y] = [value(a) ?? "", value(b) ?? ""];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1) || a.n - b.n;
    });
    for (const cell of $("rebalances").querySelectorAll("thead th")) {
      if (cell.dataset.key === order) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    body.replaceChildren(...shown.flatMap((row) => (opened.has(row.n) ? [kept(row), particulars(row)] : [kept(row)])));
    const total = group.rebalances.length;
    $("found").textContent = rows.length === total ? counted(total, "rebalance") : `${number(rows.length)} of ${counted(total, "rebalance")}; the charts show these`;
    if (!rows.length) body.append(el("tr", {}, el("td", { colspan: COLUMNS.length, class: "quiet" }, total ? "No rebalance matches the filter." : "There was no rebalance.")));
    charts.setRebalances(rows);
  }

  // Rows are built once: building a thousand of them takes most of the time.
  function kept(row) {
    if (!lines.has(row.n)) lines.set(row.n, line(row));
    return lines.get(row.n);
  }

  function line(row) {
    const open = opened.has(row.n);
    const button = el("button", { type: "button", class: "open", "aria-expanded": String(open), "aria-controls": `particulars-${row.n}`, "aria-label": `Rebalance ${row.n}` }, `${row.n}`);
    const took = el("td", { class: "figure c-took" }, duration(row.took), meter(row.took / longest));
    const late = row.late === undefined ? row.last || "" : [el("span", {}, row.last), " ", el("span", { class: "quiet" }, `${row.how ? `${row.how}, ` : ""}${duration(row.late)}`)];
    return el("tr", { "data-n": row.n, class: open ? "opened" : "", onclick: (event) => { if (event.target === button || !window.getSelection().toString()) toggle(row.n); } },
      el("th", { scope: "row", class: "figure c-n" }, button),
      el("td", { class: "figure c-start", title: row.iso }, moment(group, row.start)),
      el("td", { class: "c-cause" }, swatch(row.cause), row.cause, row.sure < 1 || row.sure === undefined ? el("span", { class: "quiet" }, ` ${Math.round((row.sure || 0) * 100)} %`) : ""),
      el("td", { class: "c-who" }, row.who || "", " ", row.host ? el("span", { class: "quiet" }, row.host) : ""),
      took,
      el("td", { class: "figure c-late" }, late),
      el("td", { class: "figure c-moved" }, number(row.moved || 0), row.needless ? el("span", { class: "quiet" }, ` ${number(row.needless)} needless`) : ""),
      el("td", { class: "figure c-paused" }, duration(row.paused)),
      el("td", { class: `c-outcome ${["interrupted", "open"].includes(row.outcome) ? "odd" : ""}` }, row.outcome || ""));
  }

  function particulars(row) {
    const pairs = [
      ["Started", `${row.iso} (${relative(row.start)})`],
      ["Set off by", [person(row.who, row.host), row.member && row.member !== row.who ? `, member id ${row.member}` : ""].join("")],
      ["Stated reason", row.reason && worded(row.reason)],
      ["Phases", row.joining === undefined ? "" : phases(row)],
      ["Waited for", row.last && `${person(row.last, row.lastHost)}${row.how ? `, ${row.how}` : ""}${row.late === undefined ? "" : `: ${duration(row.late)} after all others`}`],
      ["Removed", row.removed && el("ul", {}, row.removed.map(([name, host, why]) => el("li", {}, `${person(name, host)}: ${why}`)), row.moreRemoved ? el("li", {}, `${number(row.moreRemoved)} more`) : "")],
      ["Members", `${number(row.before || 0)} before, ${number(row.after || 0)} after`],
      ["Partitions", `${number(row.moved || 0)} moved${row.needless ? `, ${number(row.needless)} of them needlessly` : ""}${row.paused ? `; paused for ${duration(row.paused)} in total` : ""}`],
      ["Assignor", row.assignor && `${row.assignor}${row.cooperative === undefined ? "" : row.cooperative ? ", cooperative: members keep their partitions meanwhile" : ", eager: members give up all partitions first"}`],
      ["Generation", row.gen === undefined ? "" : `${row.gen}${row.leader ? `, led by ${row.leader}` : ""}`],
    ];
    const sure = row.sure === 1 ? "Certain: the source states it." : `${Math.round((row.sure || 0) * 100)} % confidence.`;
    return el("tr", { class: "particulars", id: `particulars-${row.n}` }, el("td", { colspan: COLUMNS.length },
      el("p", { class: "sentence" }, worded(row.detail || row.cause), " ", el("span", { class: "quiet" }, sure)),
      page.causes[row.cause] ? el("p", { class: "quiet" }, page.causes[row.cause].about) : "",
      el("dl", {}, pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      row.evidence ? evidence(row) : "",
      el("button", { type: "button", onclick: () => { charts.showRebalance(row); $("time").scrollIntoView(); $("charts").focus({ preventScroll: true }); } }, "Show in the charts")));
  }

  function phases(row) {
    const all = row.joining + (row.syncing || 0) || 1;
    const bar = el("span", { class: "phases", "aria-hidden": "true" }, el("span"), el("span"));
    bar.children[0].style.width = `${row.joining / all * 100}%`;
    bar.children[1].style.width = `${(row.syncing || 0) / all * 100}%`;
    return el("span", {}, bar, `joining ${duration(row.joining)}`, row.syncing === undefined ? "" : `, assignment ${duration(row.syncing)}`);
  }

  function evidence(row) {
    return el("div", {}, el("h4", {}, "Evidence"), el("ol", { class: "evidence" },
      row.evidence.map(([at, source, place, text]) => el("li", {}, el("span", { class: "when" }, moment(group, at)), " ", worded(text), " ", el("span", { class: "quiet" }, `${source} ${place}`))),
      row.moreEvidence ? el("li", { class: "quiet" }, `${counted(row.moreEvidence, "more row")} in the tables`) : ""));
  }

  function toggle(n) {
    if (!opened.delete(n)) opened.add(n);
    const old = body.querySelector(`tr[data-n="${n}"]`);
    const row = group.rebalances.find((candidate) => candidate.n === n);
    if (old.nextElementSibling && old.nextElementSibling.classList.contains("particulars")) old.nextElementSibling.remove();
    const fresh = line(row);
    lines.set(n, fresh);
    old.replaceWith(fresh);
    if (opened.has(n)) fresh.after(particulars(row));
    fresh.querySelector("button").focus({ preventScroll: true });
  }

  // Open a rebalance and scroll to it; reset a filter that hides it.
  function open(n) {
    if (!group.rebalances.some((row) => row.n === n)) return;
    if (!body.querySelector(`tr[data-n="${n}"]`)) {
      $("filter").reset();
      fill();
    }
    if (!opened.has(n)) toggle(n);
    const row = body.querySelector(`tr[data-n="${n}"]`);
    row.querySelector("button").focus({ preventScroll: true });
    row.scrollIntoView({ block: "center" });
  }

  function listen() {
    for (const id of ["filter-cause", "filter-member"]) $(id).addEventListener("change", fill);
    $("filter-text").addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(fill, 80);
    });
    $("filter").addEventListener("reset", () => setTimeout(fill));
    $("filter").addEventListener("submit", (event) => event.preventDefault());
  }

  return { setGroup, open, listen, shown: matching };
})();
