// The live page: groups, members, owners, and rebalances as they happen; topics, transactions and brokers. Its only
// source is the control port: a stream of what changes, and tables that are asked for while their tab is open. What it
// draws of the past is what it has seen since it was opened, what members have had since their group is settled, and the
// rebalances that the coordinator remembers.

const OPEN = 4, PAGE = 50, TICK = 250, ASK = 2000, SILENCE = 25000, AGAIN = 1000;
const cards = new Map(); // group id -> its card
const live = { brokers: [], leaders: [], lost: 0, ahead: 0, shown: PAGE }; // ahead: the coordinator's clock before ours, in ms

const now = () => live.lost || Date.now() + live.ahead;

function token() {
  try {
    const text = decodeURIComponent(location.hash.slice(1));
    return /^[!-~]*$/.test(text) ? text : "";
  } catch { return ""; } // it is no token of ours
}

const ask = (path, method = "GET", body = undefined, signal = undefined) => fetch(`/${path}`, {
  method, signal,
  headers: { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" },
  body: body && JSON.stringify(body),
});

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text; // a screen reader says what is set, also what is the same
}

function problem(text) {
  $("problem").hidden = !text;
  set("problem", text);
}

// Return the answer of an operation; null if there is none, which the page says.
async function answered(path, method, body) {
  let answer;
  try {
    answer = await ask(path, method, body);
  } catch { return null; } // the stream notices it, too
  if (answer.ok) return answer;
  problem((await answer.json()).error);
  return null;
}

async function act(path, body = {}) {
  problem("");
  await answered(path, "POST", body);
}

// ---- what the stream says

let unsaid = [];
function say(text) {
  if (!unsaid.length) setTimeout(() => {
    set("said", unsaid.length > 3 ? `${unsaid.length} changes of groups; the last: ${unsaid.at(-1)}` : unsaid.join("; "));
    unsaid = [];
  }, 1000);
  unsaid.push(text);
}

function show(seen) {
  live.ahead = seen.now - Date.now();
  if (live.lost) found();
  [live.brokers, live.leaders, live.leftOut] = [seen.brokers, seen.leaders, seen.groups_left_out];
  if (seen.is_first) {
    const present = new Set(seen.groups.map((group) => group.group_id));
    seen.gone = [...cards.keys()].filter((id) => !present.has(id));
    for (const card of cards.values()) card.rebalances = [];
  }
  for (const id of seen.gone) {
    const card = cards.get(id);
    watcher.unobserve(card.element);
    card.element.remove();
    cards.delete(id);
  }
  const changed = new Set();
  for (const group of seen.groups) {
    const card = cards.get(group.group_id) || new Card(group.group_id);
    const before = card.group && card.kind;
    card.take(group, seen.now);
    if (!cards.has(card.id)) add(card);
    if (!seen.is_first && before !== card.kind) say(`${cut(card.id)}: ${card.kind}`);
    changed.add(card);
  }
  for (const one of seen.rebalances) {
    const card = cards.get(one.group_id);
    if (!card) continue; // of a group that is gone
    card.rebalances = [...card.rebalances, one].slice(-REMEMBERED);
    changed.add(card);
  }
  const leaders = JSON.stringify([live.brokers, live.leaders]);
  for (const card of leaders === live.before ? changed : cards.values()) card.fill();
  live.before = leaders;
  set("source", `live from ${cut(seen.address, 200)}`);
  list();
  listBrokers();
  document.documentElement.dataset.shown ||= String(Math.round(performance.now()));
}

function add(card) {
  cards.set(card.id, card);
  watcher.observe(card.element);
}

const ORDERS = {
  trouble: (a, b) => a.group.is_settled - b.group.is_settled || (a.group.state === "Empty") - (b.group.state === "Empty"),
  name: () => 0,
  members: (a, b) => b.group.members.length - a.group.members.length,
  last: (a, b) => (b.rebalances.at(-1)?.ended_at || 0) - (a.rebalances.at(-1)?.ended_at || 0),
};

// Put those cards on the page that are searched for, in their order.
function list() {
  const words = $("find-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (card) => [card.id, ...card.group.members.flatMap((m) => [m.client_id, m.client_host, m.group_instance_id])].join(" ").toLowerCase();
  const wanted = [...cards.values()].filter((card) => !words.length || words.every((word) => text(card).includes(word)));
  wanted.sort((a, b) => ORDERS[$("find-order").value](a, b) || (a.id < b.id ? -1 : 1));
  const shown = wanted.slice(0, live.shown).map((card) => card.element);
  const there = $("cards").children;
  if (shown.length !== there.length || shown.some((element, at) => element !== there[at])) arrange(shown);
  if (cards.size <= OPEN) for (const card of cards.values()) if (!card.isOpen && !card.isChosen) card.open(true);
  const moving = wanted.filter((card) => !card.group.is_settled && card.group.state !== "Empty").length;
  set("found", `${counted(wanted.length, "group")}, ${number(moving)} rebalancing` + (live.leftOut ? `; ${number(live.leftOut)} more are not followed` : ""));
  $("find").hidden = cards.size <= OPEN;
  $("legend").hidden = !cards.size;
  $("none").hidden = cards.size > 0;
  $("more").hidden = wanted.length <= shown.length;
  set("more", `and ${number(wanted.length - shown.length)} more`);
  set("tab-groups", `Groups (${number(cards.size + (live.leftOut || 0))})`);
}

// Move what stands elsewhere, and leave the rest: what has the focus keeps it.
function arrange(elements) {
  const wanted = new Set(elements), box = $("cards");
  for (const element of [...box.children]) if (!wanted.has(element)) element.remove();
  elements.forEach((element, at) => { if (box.children[at] !== element) box.insertBefore(element, box.children[at] || null); });
}

// Charts that are not in sight stand still.
const watcher = new IntersectionObserver((entries) => {
  const seen = new Map(entries.map((entry) => [entry.target, entry.isIntersecting]));
  for (const card of cards.values()) if (seen.has(card.element)) card.isSeen = seen.get(card.element);
});

function redraw() {
  for (const card of cards.values()) if (card.isOpen) card.draw();
}

// ---- there, and gone

function enable(isThere) {
  for (const each of document.querySelectorAll("[data-act]")) each.disabled = !isThere;
  document.body.classList.toggle("gone", !isThere);
}

function lose() {
  if (live.lost) return;
  live.lost = now();
  redraw();
  enable(false);
  set("source", "not connected");
  problem(`The coordinator has not answered since ${clock(live.lost, 10 * WINDOW + 1)} UTC; this page goes on by itself as soon as it does.`);
}

function found() {
  for (const card of cards.values()) for (const lane of card.lanes.values()) card.end(lane, live.lost);
  live.lost = 0;
  enable(true);
  problem("");
}

async function listen() {
  for (;;) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE);
    try {
      const answer = await ask("events", "GET", undefined, silence.signal);
      if (answer.status === 401) {
        document.body.classList.add("refused");
        return problem("The token is wrong: open the address that kcoord serve has printed, with what stands behind #.");
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE);
        const events = (text + read.value).split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
      }
    } catch (error) {
      if (!(error instanceof TypeError) && error.name !== "AbortError") throw error; // those of a connection
    }
    clearTimeout(timer);
    lose();
    await new Promise((done) => setTimeout(done, AGAIN));
  }
}

// ---- tabs

const button = (title, path, key) => el("button", { type: "button", "data-act": true, "data-key": key, onclick: () => act(path) }, title);
const coordinated = (node) => [...cards.values()].filter((card) => live.leaders[card.group.partition] === node).length;
const behind = (topic) => topic.groups.reduce((sum, group) => sum + group.lag, 0);
const opened = new Map(); // topic -> its partitions

async function partitions(topic) {
  if (opened.has(topic)) opened.delete(topic);
  else opened.set(topic, await (await answered(`topics/${encodeURIComponent(topic)}/partitions`))?.json() || []);
  tables.topics.fill();
}

function partitionsOf(topic) {
  const rows = opened.get(topic.name);
  if (!rows) return null;
  const table = new Table(`Partitions of ${cut(topic.name)}`, [
    ["partition", (one) => String(one.partition)], [">leader", (one) => (one.leader < 0 ? "none" : String(one.leader))],
    [">start", (one) => number(one.start_offset)], [">end", (one) => number(one.end_offset)],
    [">in open transactions", (one) => number(one.end_offset - one.stable_offset)],
    ["committed", (one) => Object.entries(one.committed).slice(0, FOLD).map(([group, offset]) => el("div", {}, bdi(group), ` at ${number(offset)}, lag ${number(Math.max(0, one.end_offset - offset))}`))],
  ], null);
  table.most = Infinity;
  table.set(rows);
  return table.element;
}

const tables = {
  topics: new Table("Topics, and how far groups are behind", [
    ["topic", (one) => el("button", { type: "button", class: "link", "data-key": one.name, "aria-expanded": String(opened.has(one.name)), onclick: () => partitions(one.name) }, one.name), (one) => one.name],
    [">partitions", (one) => number(one.partitions), (one) => one.partitions],
    [">records", (one) => number(one.records), (one) => one.records],
    [">lag", (one) => (one.groups.length ? number(behind(one)) : ""), behind],
    ["groups", (one) => [...one.groups.slice(0, FEW).map((group) => el("div", {}, bdi(group.group_id), `: lag ${number(group.lag)} in ${counted(group.partitions, "partition")}`)),
      one.groups.length > FEW ? `and ${number(one.groups.length - FEW)} more` : ""]],
  ], (one) => [one.name, ...one.groups.map((group) => group.group_id)].join(" "), partitionsOf),
  transactions: new Table("Transactional ids, the last to change first", [
    ["transactional id", (one) => bdi(one.transactional_id), (one) => one.transactional_id],
    ["state", (one) => one.state, (one) => one.state],
    [">producer", (one) => String(one.producer_id)], [">epoch", (one) => String(one.producer_epoch)],
    [">open for", (one) => (one.state === "Ongoing" && one.started_at !== null ? duration(Math.max(0, now() - one.started_at)) : ""), (one) => one.started_at || Infinity],
    [">at most", (one) => duration(one.timeout_ms)],
    ["partitions", (one) => bdi(places(one.partitions), 300)],
  ], (one) => one.transactional_id + one.state),
  brokers: new Table("Brokers", [
    ["broker", (one) => String(one.node)],
    ["state", (one) => el("span", { class: `badge ${one.state === "running" ? "info" : "warning"}` }, one.state)],
    ["", (one) => [
      one.state === "paused" ? button("Resume", `brokers/${one.node}/resume`, `p${one.node}`) : one.state === "running" ? button("Pause", `brokers/${one.node}/pause`, `p${one.node}`) : "",
      one.state === "stopped" ? button("Restart", `brokers/${one.node}/restart`, `s${one.node}`) : button("Stop", `brokers/${one.node}/stop`, `s${one.node}`)]],
    ["address", (one) => one.address], [">groups it coordinates", (one) => number(one.groups)],
  ], null),
};
const SOURCES = { topics: "lags", transactions: "transactions" };
const EMPTY = { topics: "There are no topics.", transactions: "There are no transactional ids: a producer with transactions makes one." };
let tab = "groups";

// A button that is made anew while it is pressed would not be clicked.
function listBrokers() {
  const rows = live.brokers.map((broker) => ({ ...broker, groups: coordinated(broker.node) })), text = JSON.stringify(rows);
  if (tab === "brokers" && text !== listBrokers.before) tables.brokers.set(rows);
  if (tab === "brokers") listBrokers.before = text;
}

async function look() {
  const path = SOURCES[tab], shown = tab;
  if (!path || live.lost || document.hidden) return;
  const answer = await answered(path);
  if (!answer) return;
  const text = await answer.text();
  const rows = JSON.parse(text).sort((a, b) => Boolean(a.is_internal) - Boolean(b.is_internal));
  for (const topic of shown === "topics" ? opened.keys() : []) {
    const there = rows.some((one) => one.name === topic) && await answered(`topics/${encodeURIComponent(topic)}/partitions`);
    if (there) opened.set(topic, await there.json());
    else opened.delete(topic);
  }
  const all = text + JSON.stringify([...opened]);
  if (all === look.before && shown !== "transactions") return; // the time that transactions are open goes on
  look.before = all;
  tables[shown].set(rows);
  set(`none-${shown}`, rows.length ? "" : EMPTY[shown]);
}

function choose(chosen) {
  tab = chosen;
  look.before = "";
  for (const each of document.querySelectorAll("[role=tab]")) {
    const isChosen = each.id === `tab-${tab}`;
    each.setAttribute("aria-selected", String(isChosen));
    each.tabIndex = isChosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !isChosen;
  }
  listBrokers();
  look();
}

function furnish() {
  const names = { groups: "Groups", topics: "Topics", transactions: "Transactions", brokers: "Brokers" };
  listTo($("tabs"), Object.entries(names).map(([id, title]) =>
    el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id, onclick: () => choose(id) }, title)));
  $("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], ids = Object.keys(names);
    if (!by) return;
    choose(ids[(ids.indexOf(tab) + by + ids.length) % ids.length]);
    $(`tab-${tab}`).focus();
  });
  for (const [id, table] of Object.entries(tables)) $(id).append(el("p", { id: `none-${id}`, class: "quiet" }), table.element);
  choose("groups");
}

// ---- the rest

async function report() {
  const box = $("report");
  box.disabled = true;
  box.textContent = "Making the report…";
  problem("");
  const answer = await answered("report");
  if (answer) {
    const link = el("a", { href: URL.createObjectURL(await answer.blob()), download: "report.html" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }
  box.textContent = "Report";
  box.disabled = live.lost > 0;
}

function tip(event) {
  const about = event.target.closest?.("[data-tip]"), box = $("tip");
  box.hidden = !about;
  if (!about) return;
  box.textContent = about.dataset.tip;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 18 + box.offsetHeight > innerHeight ? Math.max(4, event.clientY - box.offsetHeight - 10) : event.clientY + 18}px`;
}

theme();
furnish();
$("report").addEventListener("click", report);
$("find").addEventListener("submit", (event) => event.preventDefault());
$("find-text").addEventListener("input", list);
$("find-order").addEventListener("change", list);
$("more").addEventListener("click", () => { live.shown += PAGE; list(); });
document.addEventListener("pointermove", tip);
addEventListener("hashchange", () => location.reload());
new ResizeObserver(redraw).observe($("cards")); // also when its tab is shown: what is hidden has no width
setInterval(() => { if (!live.lost && !document.hidden) cards.forEach((card) => card.tick()); }, TICK);
setInterval(look, ASK);
listen();
