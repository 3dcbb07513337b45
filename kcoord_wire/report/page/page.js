// The page: the chosen group, its summary, the theme, the keyboard.

const page = JSON.parse($("data").textContent);
const SIGNS = { critical: "▲", warning: "◆", info: "●" };
let chosen = 0, nth = -1;

function badge(severity) {
  return [SIGNS[severity] || "○", severity === "quiet" ? "nothing found" : severity].join(" ");
}

function choose(at) {
  [chosen, nth] = [at, -1];
  const group = page.groups[at];
  $("groups-select").selectedIndex = at;
  for (const row of document.querySelectorAll("#all-table tbody tr")) row.setAttribute("aria-current", String(Number(row.dataset.at) === at));
  $("group-title").textContent = group.id;
  $("severity").textContent = badge(group.severity);
  $("severity").className = `badge ${SIGNS[group.severity] ? group.severity : ""}`;
  listTo($("opening"), worded(group.headline));
  listTo($("summary"), worded(group.sentence));
  $("period").textContent = `${group.period} · ${group.origin}`;
  $("worst").hidden = !group.rebalances.some((row) => row.n === group.worst);
  $("worst").textContent = `Open #${group.worst}, which cost most`;
  facts(group);
  findings(group);
  why(group);
  members(group);
  $("cut").textContent = [...page.cut, ...group.cut].join(" ");
  listTo($("blind"), group.blind.length ? el("ul", {}, group.blind.map((text) => el("li", {}, text))) : el("p", { class: "quiet" }, "This source has everything that this report uses."));
  charts.setGroup(group);
  fold(group);
  describe(group);
  table.setGroup(group);
}

function facts(group) {
  const part = group.span ? group.rebalancing / group.span : 0;
  const pairs = [
    ["Rebalances", number(group.total), group.total > 1 ? `one every ${duration(group.span / group.total)}` : ""],
    ["Time in rebalances", duration(group.rebalancing), group.span ? `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} % of ${duration(group.span)}` : ""],
    ["Partition time paused", duration(group.paused) || "not known", "summed over the partitions"],
    ["Partitions moved", number(group.moved), `${number(group.needless)} needlessly`],
    ["Clients", number(group.clients), counted(group.members, "member id")],
    ["Not completed", number(group.unfinished), "interrupted or still open"],
  ];
  listTo($("facts"), pairs.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), el("span", { class: "quiet" }, note)))));
}

function findings(group) {
  const FIRST = 4;
  const card = (finding) => el("li", { class: `finding ${SIGNS[finding.severity] ? finding.severity : ""}` },
    el("p", {}, el("b", { class: "badge" }, badge(finding.severity)), " ", worded(finding.text), finding.alike ? el("span", { class: "quiet" }, " ", worded(finding.alike)) : ""),
    finding.advice ? el("p", { class: "advice" }, el("b", {}, "What to do: "), worded(finding.advice)) : "",
    el("p", { class: "quiet" }, `${finding.detector} · ${moment(group, finding.start)} to ${moment(group, finding.end)} · measured ${figure(finding.value)}, reported from ${figure(finding.threshold)}`,
      finding.rebalances.length ? " · rebalances " : "",
      finding.rebalances.slice(0, 8).flatMap((n) => [el("button", { type: "button", class: "link", onclick: () => table.open(n), "aria-label": `Open rebalance ${n}` }, `#${n}`), " "]),
      finding.rebalances.length > 8 ? `and ${number(finding.rebalances.length - 8 + finding.more)} more` : ""));
  const list = (cards) => [
    el("ul", { class: "findings" }, cards.slice(0, FIRST)),
    cards.length > FIRST ? el("details", {}, el("summary", {}, counted(cards.length - FIRST, "more finding")), el("ul", { class: "findings" }, cards.slice(FIRST))) : null,
  ];
  // What is only worth knowing is never under "What is wrong".
  const wrong = group.findings.filter((finding) => finding.severity !== "info").map(card);
  const others = group.findings.filter((finding) => finding.severity === "info").map(card);
  $("wrong-title").textContent = wrong.length ? "What is wrong" : "What was found";
  const none = el("p", { class: "quiet" }, group.total ? "No detector found anything beyond what the headline says." : "There was no rebalance, and no detector found anything beyond what the headline says.");
  listTo($("findings"), wrong.length ? list(wrong) : others.length ? list(others) : none);
  $("besides").hidden = !wrong.length || !others.length;
  listTo($("others"), wrong.length ? list(others) : []);  // a card has one place: above, if nothing is wrong
}

const figure = (value) => value === null ? "without end" : number(Math.round(value * 100) / 100);

function why(group) {
  const most = Math.max(1, ...group.causes.map((share) => share[1]));
  listTo($("why"), el("caption", {}, "Causes, most frequent first"), head("Cause", ">Times", ">Total time", ">Paused"),
    el("tbody", {}, group.causes.map(([cause, count, ms, paused]) => el("tr", {},
      el("th", { scope: "row", title: (page.causes[cause] || { about: "" }).about }, swatch(cause), cause),
      el("td", { class: "figure" }, number(count), meter(count / most)),
      el("td", { class: "figure" }, duration(ms)),
      el("td", { class: "figure" }, duration(paused))))));
  listTo($("who"), el("caption", {}, "Clients that set off rebalances or joined last"),
    head("Client", ">Set off", ">Was last", ">Latest by", ">Removed"),
    el("tbody", {}, group.culprits.map(([name, host, off, last, late, removed]) => el("tr", {},
      el("th", { scope: "row" }, name, " ", el("span", { class: "quiet" }, host)),
      el("td", { class: "figure" }, number(off)),
      el("td", { class: "figure" }, number(last)),
      el("td", { class: "figure" }, last ? duration(late) : ""),
      el("td", { class: "figure" }, number(removed))))));
  $("why").hidden = !group.causes.length;
  $("who").hidden = !group.culprits.length;
}

function members(group) {
  listTo($("members"), el("caption", {}, "One row per client, with its successive member ids"),
    head("Client", "Host", ">Member ids", ">First seen", ">Left", "Why", "About"),
    el("tbody", {}, group.lanes.map((lane) => {
      const [, end, reason] = lane.lives[lane.lives.length - 1];
      return el("tr", {}, el("th", { scope: "row" }, lane.label), el("td", {}, lane.host),
        el("td", { class: "figure" }, number(lane.lives.length)), el("td", { class: "figure" }, moment(group, lane.lives[0][0])),
        el("td", { class: "figure" }, reason ? moment(group, end) : "still there"), el("td", {}, reason), el("td", { class: "quiet" }, lane.about));
    })));
}

// The text of each chart for screen readers.
function describe(group) {
  const peak = group.pauses.reduce((top, point) => Math.max(top, point[1]), 0);
  const busiest = group.commits.reduce((top, point) => Math.max(top, point[group.measure]), 0);
  const behind = group.lag.reduce((top, point) => Math.max(top, point[1]), 0);
  $("lag-figure").hidden = !group.lag.length;
  $("commits-unit").textContent = `${group.unit} per ${group.each}`;
  const refused = group.commits.reduce((sum, point) => sum + point[3], 0);
  const texts = {
    causes: `${counted(group.total, "rebalance")}: ${group.causes.map(([cause, count]) => `${count} ${cause}`).join(", ") || "none"}. The table of rebalances lists them.`,
    lanes: `${counted(group.lanes.length, "client")}, one lane each: bars show when it owned partitions, their thickness how many. The table of members lists them.`,
    lag: `Records that were not read yet over time: at most ${number(behind)}. ${group.behind}`,
    pauses: `Partitions without an owner over time: at most ${peak}; ${duration(group.paused) || "not known"} in total.`,
    commits: group.commits.length ? `${group.unit === "records" ? "Records that commits advanced by" : "Commits"} per ${group.each}: at most ${number(busiest)}; ${counted(refused, "commit")} refused.` : "This source holds no commits.",
  };
  const notes = {
    causes: "", lanes: group.lanes.length ? `${counted(group.lanes.length, "client")}${group.folded ? `, ${number(group.lanes.length - group.folded)} with trouble` : ""}; × where one left${group.lanes.some((lane) => lane.dead.length) ? ", dashed while it was dead and the coordinator did not know" : ""}` : "no member was seen",
    lag: `at most ${number(behind)}; at the end ${group.behind}`,
    pauses: `at most ${number(peak)}`, commits: group.commits.length ? `at most ${number(busiest)}${refused ? `, × ${counted(refused, "commit")} refused` : ""}` : "none in this source",
  };
  for (const [id, text] of Object.entries(texts)) {
    $(id).setAttribute("aria-label", text);
    $(`${id}-note`).textContent = notes[id];
  }
}

// Lanes without trouble are shown on demand where there are many.
function fold(group) {
  const name = () => (charts.unfolded() ? "Show only those with trouble" : `Show ${counted(group.folded, "quiet client")} as well`);
  $("fold").hidden = !group.folded;
  $("fold").textContent = name();
  $("fold").onclick = () => { charts.unfold(!charts.unfolded()); $("fold").textContent = name(); };
}

// The table of all groups is there already: its names become buttons.
function allGroups() {
  $("picker").hidden = page.groups.length < 2;
  listTo($("groups-select"), page.groups.map((group) => el("option", {}, `${SIGNS[group.severity] || "○"} ${group.id} (${number(group.total)})`)));
  for (const row of document.querySelectorAll("#all-table tbody tr")) {
    const at = Number(row.dataset.at), name = row.querySelector("th");
    name.replaceChildren(el("button", { type: "button", class: "link", onclick: () => { choose(at); $("group").focus(); } }, page.groups[at].id));
  }
}

// ---- keys

// Go to the rebalance after or before the one visited last.
function step(by) {
  const rows = table.shown();
  if (!rows.length) return;
  nth = nth < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(nth + by, 0), rows.length - 1);
  charts.showRebalance(rows[nth]);
}

const ACTIONS = {
  in: () => charts.zoom(0.5), out: () => charts.zoom(2), earlier: () => charts.move(-0.25), later: () => charts.move(0.25),
  all: () => charts.whole(), previous: () => step(-1), next: () => step(1),
  up: () => charts.scroll(-5), down: () => charts.scroll(5),
};
const KEYS = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "earlier", ArrowRight: "later", ArrowUp: "up", ArrowDown: "down", 0: "all", Home: "all", p: "previous", n: "next" };

function listen() {
  $("groups-select").addEventListener("change", (event) => choose(event.target.selectedIndex));
  $("worst").addEventListener("click", () => table.open(page.groups[chosen].worst));
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => ACTIONS[button.dataset.do]());
  $("charts").addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    ACTIONS[action]();
    event.preventDefault();
  });
  charts.listen();
  table.listen();
}

theme();
allGroups();
if (page.groups.length) {
  listen();
  choose(0);
  charts.start(JSON.parse($("chart-specs").textContent), table.open).then(() => {
    describe(page.groups[chosen]);
    document.documentElement.dataset.ready = "yes";
  });
} else {
  $("group").replaceChildren(el("p", { class: "opening" }, "No consumer group was found."));
  document.documentElement.dataset.ready = "yes";
}
document.documentElement.dataset.started = "yes";
