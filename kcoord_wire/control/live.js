// The live page: groups, members, owners, and rebalances as they happen. Its only source is the stream of events; what
// it draws of the past is what it has seen since it was opened, and the rebalances that the coordinator remembers.

const WINDOW = 60000, ROW = 22, AXIS = 20, SHOWN = 12;
const cards = new Map(); // group id -> its card
let ahead = 0; // the coordinator's clock before ours, in ms

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.append(text);
  return element;
}

const named = (member) => member.group_instance_id || member.client_id || member.member_id;
const runs = (numbers) => {
  const found = [];
  for (const number of numbers) {
    if (found.length && found.at(-1)[1] === number - 1) found.at(-1)[1] = number;
    else found.push([number, number]);
  }
  return found.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(", ");
};
const places = (assignment) => Object.entries(assignment || {}).map(([topic, numbers]) => `${topic} ${runs(numbers)}`).join("; ");
const held = (member) => Object.values(member.assignment || {}).reduce((sum, numbers) => sum + numbers.length, 0);

class Card {
  constructor(id) {
    this.id = id;
    this.lanes = new Map(); // member id -> its name and what it had when
    this.rebalances = [];
    this.title = el("span");
    this.badge = el("span", { class: "badge" });
    this.facts = el("p", { class: "quiet" });
    this.progress = el("p", { class: "progress", hidden: true, role: "status" });
    this.chart = svg("svg", { class: "live-chart", role: "img" });
    this.members = el("table", {});
    this.table = el("table", {});
    const button = el("button", { type: "button", onclick: () => this.rebalance() }, "Rebalance");
    const top = el("div", { class: "top" }, el("h2", {}, this.title, " ", this.badge), button);
    const wide = (table) => el("div", { class: "scroll" }, table);
    this.element = el("section", { class: "card" }, top, this.facts, this.progress, this.chart, wide(this.members), wide(this.table));
    this.title.textContent = id;
    button.setAttribute("aria-label", `Let the group ${id} rebalance`);
    this.chart.setAttribute("aria-label", `Members of ${id} over the last minute, and its rebalances`);
  }

  async rebalance() {
    const answer = await ask(`groups/${encodeURIComponent(this.id)}/rebalance`, "POST", { reason: "asked for on the page" });
    if (!answer.ok) problem((await answer.json()).error);
  }

  show(group, rebalances, now) {
    this.group = group;
    this.rebalances = rebalances;
    this.badge.textContent = group.is_settled ? "Stable" : group.state === "Stable" ? "settling" : group.state;
    this.badge.className = `badge ${group.is_settled ? "info" : group.state === "Empty" ? "" : "warning"}`;
    listTo(this.facts, [
      `generation ${group.generation_id}`, group.protocol, counted(group.members.length, "member"),
      `${rebalances.length} rebalances seen`,
    ].filter(Boolean).join(" · "));
    this.remember(group, now);
    this.listMembers(group);
    this.listRebalances(rebalances);
    this.draw(now);
  }

  remember(group, now) {
    const present = new Set(group.members.map((member) => member.member_id));
    for (const [id, lane] of this.lanes) {
      const last = lane.parts.at(-1);
      if (!present.has(id) && last.until === null) last.until = now;
      lane.parts = lane.parts.filter((part) => part.until === null || part.until > now - WINDOW);
      if (!lane.parts.length) this.lanes.delete(id);
    }
    for (const member of group.members) {
      const lane = this.lanes.get(member.member_id) || { name: named(member), parts: [] };
      const last = lane.parts.at(-1);
      const part = { from: now, until: null, held: held(member), awaited: member.awaited };
      if (!last || last.until !== null || last.held !== part.held || last.awaited !== part.awaited) {
        if (last && last.until === null) last.until = now;
        lane.parts.push(part);
      }
      this.lanes.set(member.member_id, lane);
    }
  }

  listMembers(group) {
    const rows = group.members.map((member) => el("tr", {},
      el("th", { scope: "row" }, named(member)), el("td", {}, member.client_host), el("td", {}, places(member.assignment) || "-"),
      el("td", {}, member.awaited ? `its ${member.awaited} is awaited` : member.member_id === group.leader_id ? "leads" : "")));
    listTo(this.members, el("caption", {}, "Members and what they own"), head("member", "host", "partitions", ""), el("tbody", {}, rows));
    this.members.hidden = !rows.length;
  }

  listRebalances(rebalances) {
    const rows = rebalances.slice(-SHOWN).reverse().map((one) => el("tr", {},
      el("th", { scope: "row" }, clock(one.started_at, WINDOW)), el("td", {}, String(one.generation_id)),
      el("td", {}, [one.trigger, one.client_id].filter(Boolean).join(": ")), el("td", {}, one.reason || ""),
      el("td", { class: "figure" }, duration(one.ended_at - one.started_at)), el("td", {}, one.outcome),
      el("td", {}, one.removed.map((gone) => `${gone.client_id}: ${gone.why}`).join("; "))));
    listTo(this.table, el("caption", {}, "Rebalances that have ended, the last first"),
      head("began (UTC)", "generation", "trigger", "stated reason", ">took", "outcome", "lost"), el("tbody", {}, rows));
    this.table.hidden = !rows.length;
  }

  // What moves with the time alone.
  draw(now) {
    const current = this.group.rebalance;
    this.progress.hidden = !current;
    if (current) {
      const awaited = this.group.members.filter((member) => member.awaited);
      const waits = awaited.length ? `; waits for ${awaited.slice(0, 5).map((m) => `${named(m)} (${m.awaited})`).join(", ")}` : "";
      const by = current.client_id ? ` by ${current.client_id}` : "";
      this.progress.textContent =
        `Rebalance for ${duration(Math.max(0, now - current.started_at))}: ${current.trigger}${by}${current.reason ? ` (${current.reason})` : ""}${waits}`;
    }
    const width = Math.max(300, this.chart.clientWidth || 800), left = Math.min(220, width * 0.3);
    const lanes = [...this.lanes.values()], height = ROW * Math.max(1, lanes.length) + AXIS;
    const x = (ms) => left + (Math.max(0, Math.min(WINDOW, ms - now + WINDOW)) / WINDOW) * (width - left);
    const parts = [];
    for (let back = 0; back <= 60; back += 15) {
      const at = x(now - back * 1000);
      parts.push(svg("line", { x1: at, x2: at, y1: 0, y2: height - AXIS }));
      parts.push(svg("text", { x: at, y: height - 5, "text-anchor": back ? (back === 60 ? "start" : "middle") : "end" }, back ? `${back} s ago` : "now"));
    }
    for (const one of [...this.rebalances, ...(current ? [current] : [])]) {
      const end = one.ended_at === null ? now : one.ended_at;
      if (end < now - WINDOW) continue;
      parts.push(svg("rect", { class: "band", x: x(one.started_at), y: 0, width: Math.max(3, x(end) - x(one.started_at)), height: height - AXIS }));
    }
    lanes.forEach((lane, row) => {
      const y = row * ROW;
      parts.push(svg("text", { class: "who", x: 0, y: y + 15 }, lane.name.length > 28 ? `${lane.name.slice(0, 27)}…` : lane.name));
      for (const part of lane.parts) {
        const from = x(part.from), wide = Math.max(2, x(part.until === null ? now : part.until) - from);
        const kind = part.awaited ? "awaited" : part.held ? "" : "none";
        parts.push(svg("rect", { class: `lane ${kind}`, x: from, y: y + 4, width: wide, height: ROW - 8 }));
        if (part.held && wide > 24) parts.push(svg("text", { class: "count", x: from + 5, y: y + 15 }, String(part.held)));
      }
    });
    this.chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.chart.setAttribute("height", height);
    this.chart.replaceChildren(...parts);
  }
}

const now = () => Date.now() + ahead;
const token = () => decodeURIComponent(location.hash.slice(1));
const ask = (path, method = "GET", body = undefined) => fetch(`/${path}`, {
  method,
  headers: { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" },
  body: body && JSON.stringify(body),
});

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text;
}

function show(seen) {
  ahead = seen.now - Date.now();
  $("source").textContent = `live from ${seen.address}` + (seen.groups_left_out ? `; ${counted(seen.groups_left_out, "group")} more` : "");
  problem("");
  for (const group of seen.groups) {
    if (!cards.has(group.group_id)) {
      cards.set(group.group_id, new Card(group.group_id));
      $("cards").append(cards.get(group.group_id).element);
    }
    cards.get(group.group_id).show(group, seen.rebalances.filter((one) => one.group_id === group.group_id), seen.now);
  }
  const present = new Set(seen.groups.map((group) => group.group_id));
  for (const [id, card] of cards) {
    if (!present.has(id)) {
      card.element.remove();
      cards.delete(id);
    }
  }
  $("none").hidden = cards.size > 0;
}

async function listen() {
  for (;;) {
    try {
      const answer = await ask("events");
      if (answer.status === 401) return problem("The token is wrong: open the address that kcoord serve has printed, with what stands behind #.");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        const events = (text + read.value).split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // that of a connection which cannot be made
    }
    $("source").textContent = "the coordinator does not answer; asking again";
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function theme() {
  const set = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-pressed", String(dark));
  };
  set(matchMedia("(prefers-color-scheme: dark)").matches);
  $("theme").addEventListener("click", () => set(document.documentElement.dataset.theme !== "dark"));
}

theme();
addEventListener("hashchange", () => location.reload());
setInterval(() => cards.forEach((card) => card.draw(now())), 250);
listen();
